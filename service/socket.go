package service

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/service/api"
)

// listenSocket listens on the Unix socket by which this user administers the aggregator. Without one the admin's token does.
func (s *Service) listenSocket() (net.Listener, error) {
	at, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.New("the aggregator listens on no TCP address")
	}
	path := api.SocketPath(at)
	if err := api.OwnSocketDir(path); err != nil {
		return nil, err
	}
	unlock := lockFolder(filepath.Dir(path))
	defer unlock()
	sweepSockets(filepath.Dir(path))
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(errors.New("another aggregator listens on "+path), c.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of one that was killed
		return nil, err
	}
	return net.Listen("unix", path)
}

// lockWithin is how long other aggregators that start may take to listen.
const lockWithin = time.Second

// lockFolder keeps other aggregators that start from sweeping, and from being swept while they begin to listen. Without the lock
// the age of a socket does.
func lockFolder(dir string) (unlock func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(lockWithin); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			break
		}
	}
	return func() { f.Close() }
}

// sweepAfter is the age before which a socket at which nobody listens may be one that is about to be listened at.
const sweepAfter = 10 * time.Second

// sweepSockets removes the sockets of aggregators that were killed: those that refuse connections. One that is stopped, or has no
// room for more connections, does not refuse.
func sweepSockets(dir string) {
	entries, _ := os.ReadDir(dir) // without them nothing is swept
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if err != nil || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < sweepAfter {
			continue
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}
