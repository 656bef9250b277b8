package roofline

import (
	"fmt"
	"time"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/cgo/fabric"
)

const (
	// socketBlock is a send or recv of the socket loop: the fastest of the sizes from 32 KiB to 1 MiB, by a fifth or less.
	socketBlock = 256 << 10
	// mostSpan bounds the memory that each connection walks through: of several connections beyond any cache.
	mostSpan = 32 << 20
	// A run of the socket loop moves so many bytes at least, beside which its threads start in no time, and at most.
	leastSocketBytes = 16 << 20
	mostSocketBytes  = 1 << 30
	socketTimeout    = time.Minute
)

// TCP measures a bare loop over sockets of the loopback device that moves the bytes of each worker both ways at once, over as
// many connections as RackWeave has: one for each worker and lane. A thread for each lane stands for the aggregator, and one
// for each worker.
func TCP(workers, lanes int, bytes uint64) (report.Roofline, error) {
	loop := socketLoop(workers, lanes, bytes)
	gbs, err := measure(2*uint64(loop.Bytes), loop.Run)
	if err != nil {
		return report.Roofline{}, fmt.Errorf("tcp roofline: %w", err)
	}
	return report.Roofline{Name: "tcp", GBs: gbs}, nil
}

func socketLoop(workers, lanes int, bytes uint64) fabric.TCPRoofline {
	return fabric.TCPRoofline{
		Connections: workers * lanes, Hubs: lanes, Peers: workers,
		Block:   socketBlock,
		Span:    int(min(max(bytes/uint64(lanes), socketBlock), mostSpan)),
		Bytes:   int64(max(min(bytes, mostSocketBytes/uint64(workers))*uint64(workers), leastSocketBytes)),
		Timeout: socketTimeout,
	}
}
