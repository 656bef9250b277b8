// Package session is one worker's connection to one lane: a resumable stream of messages in each direction, over whatever queue
// pair there is.
//
// # The stream
//
// Both ends implement the same stream: [Stream] here, cgo/worker/stream.h in the worker. One script drives both
// (testdata/stream). Each end keeps the messages it sent, in order, until it knows that they arrived, and counts
//
//	held      messages in the ring: sent, and not known to have arrived
//	unposted  the youngest of those, which the present queue pair has not been given
//	done      messages that left the ring, ever
//	reached   messages that were given to any queue pair, ever
//	received  messages from the peer, ever
//
// These invariants hold:
//
//  1. A message leaves the ring only when the transport or the peer says that it arrived, oldest first.
//  2. done <= reached <= done + held, and the peer has received at least done and at most reached messages.
//  3. After a break nothing is posted until the stream resumes.
//  4. To resume, both ends take their queue pair out of service, so that nothing lands late, and tell each other received. Each
//     checks the other's count against 2, drops from the ring what has arrived, and posts the rest again, in order.
//
// A queue pair keeps order, so counts are enough: no message carries a number, every message is received exactly once, and
// slots, windows and epochs never notice.
package session
