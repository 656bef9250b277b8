// Package streamtest lets tests drive the worker's end of a stream (cgo/worker/stream.h).
package streamtest

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include "../stream.h"
*/
import "C"

import (
	"unsafe"

	_ "github.com/rackweave/rackweave/cgo/fabric/base" // for their C
	_ "github.com/rackweave/rackweave/cgo/worker"
)

// Stream is a stream in C memory. Each message carries its number.
type Stream struct {
	s    *C.struct_stream
	next uint32
}

// New makes a stream that holds up to depth messages. Close frees it.
func New(depth int) *Stream {
	s := &Stream{s: (*C.struct_stream)(C.calloc(1, C.sizeof_struct_stream))}
	if C.stream_init(s.s, C.uint32_t(depth)) != 0 {
		panic("streamtest: out of memory")
	}
	return s
}

// Close frees the stream.
func (s *Stream) Close() {
	C.stream_free(s.s)
	C.free(unsafe.Pointer(s.s))
}

// Put appends a message and reports whether the ring had room.
func (s *Stream) Put() bool {
	wr := C.stream_place(s.s)
	if wr == nil {
		return false
	}
	wr.imm = C.uint32_t(s.next)
	s.next++
	C.stream_put(s.s)
	return true
}

// Post gives a queue pair all waiting messages and returns their numbers.
func (s *Stream) Post() (posted []uint32) {
	for {
		var first *C.struct_rwf_send_wr
		n := C.stream_next(s.s, &first)
		if n == 0 {
			return posted
		}
		for _, wr := range unsafe.Slice(first, n) {
			posted = append(posted, uint32(wr.imm))
		}
		C.stream_posted(s.s, n)
	}
}

// Sent records that the n oldest messages have arrived.
func (s *Stream) Sent(n int) { C.stream_sent(s.s, C.uint32_t(n)) }

// Receive records n messages from the peer.
func (s *Stream) Receive(n int) { s.s.received += C.uint64_t(n) }

// Break marks the stream as broken, because the queue pair has failed.
func (s *Stream) Break() { s.s.broken = 1 }

// Resume continues with a peer that has received so many messages, and reports whether that number is possible.
func (s *Stream) Resume(received uint64) bool {
	return C.stream_resume(s.s, C.uint64_t(received)) == 0
}

// State is a copy of a stream's state.
type State struct {
	Held                    []uint32 // numbers of the messages in the ring
	Unposted                int
	Done, Reached, Received uint64
}

// State returns a copy of the stream's state.
func (s *Stream) State() State {
	st := State{Unposted: int(s.s.unposted), Done: uint64(s.s.done), Reached: uint64(s.s.reached), Received: uint64(s.s.received)}
	for i := range s.s.held {
		st.Held = append(st.Held, uint32(C.stream_at(s.s, i).imm))
	}
	return st
}
