package service

import (
	"errors"
	"net"
	"os"

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
	return net.Listen("unix", path)
}
