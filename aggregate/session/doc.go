// Package session is a connection to one lane, from a worker or from another rack's lane: a resumable stream of messages in each
// direction, over any queue pair.
//
// # The stream
//
// Both ends implement the same stream: [Stream] here, cgo/worker/stream.h in the worker. One script drives both
// (testdata/stream). Each end keeps the messages it sent, in order, until it knows that they arrived, and counts
//
//	held      messages in the ring: sent, and not known to have arrived
//	unposted  the youngest of the held messages, which the present queue pair has not taken
//	done      messages that left the ring, ever
//	reached   messages that any queue pair took, ever
//	received  messages from the peer, ever
//
// These invariants hold:
//
//  1. A message leaves the ring only when the transport or the peer confirms its arrival, oldest first.
//  2. done <= reached <= done + held, and the peer has received at least done and at most reached messages.
//  3. After a break nothing is posted until the stream resumes.
//  4. To resume, both ends take their queue pair out of service, so that nothing lands late, and exchange received. Each
//     checks the other's count against 2, drops the messages that have arrived, and posts the rest again, in order.
//
// A queue pair keeps order, so counts are enough. No message carries a number, every message is received exactly once, and breaks
// do not affect slots, windows and epochs.
package session
