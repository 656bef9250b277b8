package lanes

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// Memory is an arena registered with every NIC of a session.
type Memory struct {
	*numa.Arena
	MRs []verbs.MR // by NIC
}

// Allocate returns memory from and to which operations need no copy. It lasts until the session is closed.
func (s *Session) Allocate(what string, bytes int) (*Memory, error) {
	m, err := s.register(what, bytes)
	if err != nil {
		return nil, err
	}
	return m, s.expose(m)
}

// expose gives memory to the C worker.
func (s *Session) expose(m *Memory) error {
	return s.Call("register memory", func() int { return cworker.Region(s.C, m.MRs) })
}

// Holds reports whether a buffer lies in memory from [Session.Allocate]. Any goroutine may call it.
func (s *Session) Holds(b []byte) bool {
	return slices.ContainsFunc(*s.memories.Load(), func(m *Memory) bool {
		p, start := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(m.Addr())
		return p >= start && p-start+uintptr(len(b)) <= uintptr(m.Len())
	})
}

// register makes an arena and registers it with every NIC.
func (s *Session) register(what string, bytes int) (*Memory, error) {
	a, err := numa.NewArena(numa.ArenaConfig{Name: fmt.Sprintf("%s %s", s.cfg.Name, what), Bytes: int64(bytes), Node: numa.AnyNode})
	if err != nil {
		return nil, err
	}
	m := &Memory{Arena: a}
	for _, n := range s.NICs {
		mr, err := n.PD.RegisterMR(a.Addr(), uint64(a.Len()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, a.FD(), 0)
		if err != nil {
			return nil, errors.Join(err, s.deregister(m))
		}
		m.MRs = append(m.MRs, mr)
	}
	all := append(slices.Clone(*s.memories.Load()), m)
	s.memories.Store(&all)
	return m, nil
}

func (s *Session) deregister(m *Memory) error {
	var errs []error
	for i, mr := range m.MRs {
		errs = append(errs, s.NICs[i].PD.DeregisterMR(mr))
	}
	return errors.Join(append(errs, m.Close())...)
}
