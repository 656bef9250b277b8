package fabric

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// TCPRoofline describes a bare socket loop on loopback in both directions at once, with which provider tcp is compared.
type TCPRoofline struct {
	// Connections is the number of connections. Hubs and Peers are the numbers of threads at their two ends. The connections are dealt
	// to the threads of an end.
	Connections, Hubs, Peers int
	// Block is the length of one send or recv, in bytes.
	Block int
	// Span is the number of bytes of memory that a peer walks through for each connection in each direction, at least Block. A hub
	// uses one block again and again, as an aggregator can.
	Span int
	// Bytes is the number of bytes in each direction, over all connections.
	Bytes int64
	// Timeout bounds the run.
	Timeout time.Duration
}

// flow is one direction at one end of a connection.
type flow struct {
	move     func(fd int, p []byte) (int, error)
	memory   []byte
	at, left int
	ready    bool // the socket took or gave all that was asked of it last time
}

// flowEnd is one end of a connection.
type flowEnd struct {
	file    *os.File
	fd      int
	out, in flow
}

// Run returns the duration of the loop.
func (r TCPRoofline) Run() (time.Duration, error) {
	if r.Connections < 1 || r.Connections > 1024 || r.Hubs < 1 || r.Hubs > r.Connections || r.Peers < 1 || r.Peers > r.Connections ||
		r.Block < 1 || r.Span < r.Block || r.Bytes < int64(r.Connections) {
		return 0, fmt.Errorf("socket loop %+v: a field is out of bounds", r)
	}
	// The pages exist before the clock starts, and go when it has stopped.
	memory, err := syscall.Mmap(-1, 0, 2*r.Connections*(r.Span+r.Block), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS|syscall.MAP_POPULATE)
	if err != nil {
		return 0, fmt.Errorf("memory of the socket loop: %w", err)
	}
	defer syscall.Munmap(memory)
	near, far, err := r.connect(memory)
	for _, e := range append(near[:len(near):len(near)], far...) {
		defer e.file.Close()
	}
	if err != nil {
		return 0, err
	}
	start := time.Now()
	var threads errgroup.Group
	serve := func(ends []*flowEnd, n int) {
		for first := range n {
			var own []*flowEnd
			for i := first; i < len(ends); i += n {
				own = append(own, ends[i])
			}
			threads.Go(func() error { return r.serve(own, start.Add(r.Timeout)) })
		}
	}
	serve(near, r.Hubs)
	serve(far, r.Peers)
	err = threads.Wait()
	return time.Since(start), err
}

// connect opens the connections, whose ends walk through memory.
func (r TCPRoofline) connect(memory []byte) (near, far []*flowEnd, err error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	end := func(conn net.Conn, err error, span int) (*flowEnd, error) {
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		file, err := conn.(*net.TCPConn).File()
		if err != nil {
			return nil, err
		}
		left := int(r.Bytes / int64(r.Connections))
		e := &flowEnd{file: file, fd: int(file.Fd()), out: flow{move: syscall.Write, memory: memory[:span], left: left},
			in: flow{move: syscall.Read, memory: memory[span : 2*span], left: left}}
		memory = memory[2*span:]
		return e, syscall.SetNonblock(e.fd, true)
	}
	for range r.Connections {
		conn, err := net.Dial("tcp4", listener.Addr().String())
		e, err := end(conn, err, r.Block)
		if err != nil {
			return near, far, err
		}
		near = append(near, e)
		conn, err = listener.Accept()
		if e, err = end(conn, err, r.Span); err != nil {
			return near, far, err
		}
		far = append(far, e)
	}
	return near, far, nil
}

// serve moves the ends' bytes. It sleeps where no socket is ready.
func (r TCPRoofline) serve(ends []*flowEnd, deadline time.Time) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer syscall.Close(epoll)
	for i, e := range ends {
		event := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLOUT | 1<<31, Fd: int32(i)} // edge-triggered
		if err := syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, e.fd, &event); err != nil {
			return err
		}
	}
	events := make([]syscall.EpollEvent, 64)
	for time.Now().Before(deadline) {
		ready, left := false, 0
		for _, e := range ends {
			for _, f := range []*flow{&e.out, &e.in} {
				if err := f.step(e.fd, r.Block); err != nil {
					return err
				}
				ready = ready || f.ready && f.left > 0
				left += f.left
			}
		}
		if left == 0 {
			return nil
		}
		timeout := 100
		if ready {
			timeout = 0
		}
		n, err := syscall.EpollWait(epoll, events, timeout)
		if err != nil && err != syscall.EINTR {
			return err
		}
		for _, event := range events[:max(n, 0)] {
			e, failed := ends[event.Fd], event.Events&(syscall.EPOLLHUP|syscall.EPOLLERR) != 0
			e.in.ready = e.in.ready || failed || event.Events&syscall.EPOLLIN != 0
			e.out.ready = e.out.ready || failed || event.Events&syscall.EPOLLOUT != 0
		}
	}
	return syscall.ETIMEDOUT
}

// step moves a block if the socket is ready for it.
func (f *flow) step(fd, block int) error {
	if f.left == 0 || !f.ready {
		return nil
	}
	p := f.memory[f.at:min(f.at+min(block, f.left), len(f.memory))]
	n, err := f.move(fd, p)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		n = 0
	case err != nil:
		return err
	case n == 0:
		return syscall.ECONNRESET
	}
	f.ready = n == len(p)
	f.left -= n
	f.at = (f.at + n) % len(f.memory)
	return nil
}
