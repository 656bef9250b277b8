package attacks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/client"
)

// dataSockets lists the descriptors of this process's connections to an aggregator's data paths.
func (a *Aggregator) dataSockets() (fds []int, err error) {
	ports, err := a.listening()
	if err != nil {
		return nil, err
	}
	_, control, _ := strings.Cut(a.Addr(), ":")
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		peer, err := syscall.Getpeername(fd)
		if err != nil {
			continue
		}
		switch peer := peer.(type) {
		case *syscall.SockaddrInet4:
			if slices.Contains(ports, int64(peer.Port)) && strconv.Itoa(peer.Port) != control {
				fds = append(fds, fd)
			}
		case *syscall.SockaddrUnix:
			if strings.HasPrefix(peer.Name, "@rackweave-shm-") {
				fds = append(fds, fd)
			}
		}
	}
	return fds, err
}

// hijack joins a job of one worker and lets f send anything over each connection of the worker's data path.
func (a *Aggregator) hijack(ctx context.Context, provider string, f func(ctx context.Context, sock int)) error {
	before, err := a.dataSockets()
	if err != nil {
		return err
	}
	w, err := client.Join(ctx, client.Config{Server: a.URL, Job: newName("hijacked"), Workers: 1, Provider: provider,
		Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	defer w.Close()
	after, err := a.dataSockets()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, fd := range after {
		if slices.Contains(before, fd) {
			continue
		}
		sock, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 3)
		if errno != 0 {
			return errno
		}
		all.Go(func() {
			f(ctx, int(sock))
			syscall.Close(int(sock))
		})
	}
	all.Wait()
	if len(after) == len(before) {
		return fmt.Errorf("a worker over %s has no connection of its own", provider)
	}
	return nil
}

// again hijacks one worker after the other for half a second.
func (a *Aggregator) again(ctx context.Context, provider string, f func(ctx context.Context, sock int)) error {
	for end := time.Now().Add(time.Second / 2); time.Now().Before(end); {
		at, cancel := context.WithDeadline(ctx, end)
		err := a.hijack(ctx, provider, func(_ context.Context, sock int) { f(at, sock) })
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// EmptyFrames sends frames that bring nothing over each connection of a worker, as fast as they are taken.
func EmptyFrames(ctx context.Context, a *Aggregator) error {
	frame := append([]byte{0xa7, 1, 0, 0}, make([]byte, 12)...)
	binary.LittleEndian.PutUint32(frame[4:], 1<<14) // receives, as if all that may be were posted
	frames := slices.Repeat(frame, 4096)
	return a.again(ctx, "tcp", func(ctx context.Context, sock int) {
		for at := 0; ctx.Err() == nil; {
			n, err := syscall.Write(sock, frames[at:])
			switch {
			case err == nil:
				at = (at + n) % len(frame)
			case errors.Is(err, syscall.EAGAIN):
				time.Sleep(time.Millisecond)
			default:
				return // closed, as it should be
			}
		}
	})
}

// region returns the message by which a worker on shared memory announces a region.
func region() (b []byte) {
	const add, slot, page = 1, 4000, 4096
	for _, v := range []uint32{add, 7<<12 | slot, slot, 3} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range []uint64{1 << 40, page, 0} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// RegionsWithoutEnd announces a region again and again over each connection of a worker.
func RegionsWithoutEnd(ctx context.Context, a *Aggregator) error {
	return a.again(ctx, "shm", func(ctx context.Context, sock int) {
		files, err := ownFiles()
		if err != nil || len(files) == 0 {
			return // another connection's attack has ended the worker
		}
		for ctx.Err() == nil {
			err := syscall.Sendmsg(sock, region(), syscall.UnixRights(files[0]), nil, syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT)
			switch {
			case errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ETOOMANYREFS):
				time.Sleep(time.Millisecond)
			case err != nil:
				return
			}
		}
	})
}

// lingering returns a TCP socket whose last close takes half a minute.
func lingering() (sock int, end func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	defer listener.Close()
	sock, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	at := listener.Addr().(*net.TCPAddr)
	err = errors.Join(syscall.Connect(sock, &syscall.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}),
		syscall.SetsockoptLinger(sock, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 30}))
	if err != nil {
		return 0, nil, errors.Join(err, syscall.Close(sock))
	}
	other, err := listener.Accept()
	if err != nil {
		return 0, nil, errors.Join(err, syscall.Close(sock))
	}
	for n := 1; n > 0; {
		n, _ = syscall.SendmsgN(sock, make([]byte, 1<<20), nil, nil, syscall.MSG_DONTWAIT)
	}
	return sock, other.Close, nil
}

// SocketsThatLinger hands over sockets that take long to close, and lets a job begin beside.
func SocketsThatLinger(ctx context.Context, a *Aggregator) error {
	var errs []error
	var mu sync.Mutex
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	err := a.hijack(ctx, "shm", func(ctx context.Context, sock int) {
		for range 4 {
			fd, end, err := lingering()
			if err != nil {
				failed(err)
				return
			}
			defer end()
			syscall.Sendmsg(sock, region(), syscall.UnixRights(fd), nil, syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT)
			go syscall.Close(fd) // the last close, if the aggregator was first, lasts as long
		}
		next, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		v, err := Join(next, a.URL, newName("beside"), "", "shm")
		if err == nil {
			err = v.Leave()
		}
		failed(err)
	})
	return errors.Join(append(errs, err)...)
}

// CrowdAtTheDataPath fills the places for strangers again and again, from many addresses, while jobs begin.
func CrowdAtTheDataPath(ctx context.Context, a *Aggregator) error {
	ports, err := a.listening()
	if err != nil {
		return err
	}
	_, control, _ := strings.Cut(a.Addr(), ":")
	crowding, end := context.WithCancel(ctx)
	var crowd sync.WaitGroup
	defer crowd.Wait()
	defer end()
	for _, port := range ports {
		if strconv.FormatInt(port, 10) == control {
			continue
		}
		for i := range 16 {
			d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3, byte(1+i))}}
			crowd.Go(func() {
				for crowding.Err() == nil {
					c, err := d.DialContext(crowding, "tcp", fmt.Sprint("127.0.0.1:", port))
					if err != nil {
						continue
					}
					defer c.Close()
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
	}
	for range 5 {
		v, err := Join(ctx, a.URL, newName("newcomer"), "", "tcp")
		if err != nil {
			return fmt.Errorf("a new job in a crowd: %w", err)
		}
		if err := v.Leave(); err != nil {
			return err
		}
	}
	return nil
}
