package aggregate

import (
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// region is registered memory of the job.
type region struct {
	kind  regionKind
	lazy  bool // its pages are never touched
	arena *numa.Arena
	pds   []*verbs.PD
	mrs   []verbs.MR // by NIC of the engine, as pds
}

type regionKind int

const (
	parameterRegion regionKind = iota
	slotRegion
	resultRegion
)

// addr is where the region begins, here and for a NIC.
func (r *region) addr() uint64 { return r.mrs[0].Addr }

// holds reports whether bytes at addr lie in the region.
func (r *region) holds(addr, bytes uint64) bool {
	return addr >= r.addr() && addr-r.addr() <= r.mrs[0].Length && bytes <= r.mrs[0].Length-(addr-r.addr())
}

// allocate makes an arena on a lane's node and registers it with every NIC, as connections can move from one to another.
func (j *Job) allocate(kind regionKind, l *Lane, name string, bytes int64, access int, lazy bool) (region, error) {
	r := region{kind: kind, lazy: lazy, pds: j.pds}
	var err error
	r.arena, err = numa.NewArena(numa.ArenaConfig{Name: fmt.Sprintf("%s-lane%d", name, l.index), Bytes: bytes, Node: l.cfg.Node, Lazy: lazy})
	for nic := 0; err == nil && nic < len(j.pds); nic++ {
		var mr verbs.MR
		if mr, err = j.pds[nic].RegisterMR(r.arena.Addr(), uint64(r.arena.Len()), access, r.arena.FD(), 0); err == nil {
			r.mrs = append(r.mrs, mr)
		}
	}
	if err != nil {
		return r, errors.Join(fmt.Errorf("job %q: %s of lane %d: %w", j.name, name, l.index, err), r.close())
	}
	j.mu.Lock()
	j.regions = append(j.regions, r)
	j.mu.Unlock()
	return r, nil
}

func (r *region) close() error {
	var errs []error
	for nic, mr := range r.mrs {
		errs = append(errs, r.pds[nic].DeregisterMR(mr))
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	return errors.Join(errs...)
}

// lkeyOf is the key of memory of the job's own; under j.mu.
func (j *Job) lkeyOf(nic int, addr, bytes uint64) uint32 {
	for i := range j.regions {
		if r := &j.regions[i]; r.holds(addr, bytes) {
			return r.mrs[nic].LKey
		}
	}
	panic("aggregate: an answer lies in no region of its job")
}

// MemoryUse is what a job holds in the aggregator, in bytes.
type MemoryUse struct {
	Parameters uint64 // with optimizer state
	Slots      uint64
	Results    uint64
}

// Memory returns what the job holds.
func (j *Job) Memory() MemoryUse {
	var m MemoryUse
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.regions {
		switch r.kind {
		case parameterRegion:
			m.Parameters += uint64(r.arena.Len())
		case resultRegion:
			m.Results += uint64(r.arena.Len())
		case slotRegion:
			if !r.lazy {
				m.Slots += uint64(r.arena.Len())
			}
		}
	}
	return m
}
