package api

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
)

// An aggregator resets connections that it does not take, for instance while strangers flood it. A worker then comes again, but
// only so often: what resets for ever may be no aggregator at all.
const (
	contacts     = 6
	contactAgain = 50 * time.Millisecond // doubles
	// leavesWithin bounds the time in which the aggregator finds that a connection has gone, and with it the worker that asked by it.
	leavesWithin = 2 * time.Second
)

// Contact makes the call by which a worker joins, again where its connection is reset before there is an answer, until the worker's
// time is up. That is safe: the aggregator has not read the call, or withdraws its worker with the connection. Until it has, the
// worker's own place may be taken. For other calls it is not safe.
func Contact(ctx context.Context, timeout time.Duration, call func(within time.Duration) error) error {
	until := time.Now().Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	resets, last, pause := 0, time.Time{}, contactAgain
	for {
		err := call(time.Until(until))
		switch {
		case wasReset(err):
			if resets, last = resets+1, time.Now(); resets == contacts {
				return err
			}
		case resets > 0 && time.Since(last) < leavesWithin && isOwnGhost(err):
		default:
			return err
		}
		if time.Until(until) <= pause {
			return err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return connect.NewError(connect.CodeCanceled, context.Canceled)
		}
	}
}

// wasReset reports whether a call's connection was reset. One on which nothing came before has an error of its own in net/http, and
// so has one whose reset is read while the request is written. If the write meets the reset first, the read finds the end.
func wasReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrUnexpectedEOF) || err != nil && strings.Contains(err.Error(), "http2: client conn could not be established")
}

// isOwnGhost reports whether a call was refused because its place is taken, as it is by a call that was reset and is still served.
func isOwnGhost(err error) bool {
	code := connect.CodeOf(err)
	return connect.IsWireError(err) && (code == connect.CodeAlreadyExists || code == connect.CodeResourceExhausted)
}
