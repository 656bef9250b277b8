// Package worker is the C data path of a worker (worker.h) as seen from Go: thin calls, flat structs. Package client gives it
// names, plans and errors; use that.
//
// A training process must not host a Go runtime: it forks, owns its signal handlers, and may hold another Go library. So the data
// path of a worker is C, without a thread of its own at its core, and Go drives the same code by a call per batch, as worker.h
// describes.
//
//	worker.c   operations start: tensors are queued in their lanes
//	queue.c    the order in which a lane sends, by priority
//	rows.c     an operation on rows of a sparse tensor becomes a stream of full messages in each lane
//	sum.c      rows of the same id are summed before they travel
//	coding.c   gradients are compressed, and what that left out is kept
//	lane.c     a message is built, posted, and its answer received
//	drive.c    who polls the completion queues, and how a wait sleeps
//	resume.c   a lane goes on over another queue pair
//	stream.c   the messages that have not arrived (the other end is package session)
package worker
