package main

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	logLines    = 4096            // that may wait for a slow reader
	logLastWait = time.Second / 2 // for the last of them, when the process ends
)

// patientLog passes lines on to a writer that may take its time, such as a pipe that nobody reads. Write never waits: it drops
// lines where too many wait, and counts them in a line of its own once there is room.
type patientLog struct {
	to      io.Writer
	lines   chan []byte // nil ends them
	dropped atomic.Uint64
	done    chan struct{}
}

func newPatientLog(to io.Writer) *patientLog {
	l := &patientLog{to: to, lines: make(chan []byte, logLines), done: make(chan struct{})}
	go l.pass()
	return l
}

func (l *patientLog) pass() {
	defer close(l.done)
	for line := <-l.lines; line != nil; line = <-l.lines {
		if n := l.dropped.Swap(0); n > 0 {
			fmt.Fprintf(l.to, "rackweave: %d lines of the log were dropped: its reader is slow\n", n)
		}
		l.to.Write(line)
	}
}

// Write implements io.Writer.
func (l *patientLog) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte{}, line...): // never nil
	default:
		l.dropped.Add(1)
	}
	return len(line), nil
}

// Close waits a moment for what was written.
func (l *patientLog) Close() {
	late := time.After(logLastWait)
	select {
	case l.lines <- nil:
	case <-late:
		return
	}
	select {
	case <-l.done:
	case <-late:
	}
}

func logger(w io.Writer, level string, asJSON bool) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}
