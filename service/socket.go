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
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(errors.New("another aggregator listens on "+path), c.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of one that was killed
		return nil, err
	}
	removeDeadSockets(filepath.Dir(path))
	return net.Listen("unix", path)
}

// removeDeadSockets removes the sockets of aggregators that were killed. One that is young may not listen yet.
func removeDeadSockets(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := e.Info(); err != nil || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}
