package aggregate

import (
	"errors"
	"fmt"
	"sync"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

type regionKind int

const (
	parameterRegion regionKind = iota
	slotRegion
	resultRegion
)

var regionNames = [...]string{"parameters", "slots", "results"}

// region is registered memory of a job.
type region struct {
	kind  regionKind
	lazy  bool // its pages are never touched
	arena *numa.Arena
	mrs   []verbs.MR // by NIC of the engine
}

// addr is where the region begins, here and for a NIC.
func (r *region) addr() uint64 { return r.mrs[0].Addr }

// holds reports whether bytes at addr lie in the region.
func (r *region) holds(addr, bytes uint64) bool {
	return addr >= r.addr() && addr-r.addr() <= r.mrs[0].Length && bytes <= r.mrs[0].Length-(addr-r.addr())
}

// memory is all registered memory of a job, in its own protection domain on every NIC. Any goroutine may use it.
type memory struct {
	job     string
	pds     []*verbs.PD // by NIC
	mu      sync.Mutex
	regions []*region
	shelves map[int]*shelf // by lane; those who add tensors use it, one at a time
}

// shelf is where a lane's next parameters go. A device has few regions for all jobs, so that tensors that are registered by ones
// share some.
type shelf struct {
	region *region
	used   int64
	total  int64 // bytes of all the lane's regions
}

// What a new region of parameters has to spare: a quarter of what the lane has, within these.
const (
	leastSpare = 256 << 10
	mostSpare  = 64 << 20
)

// shelve finds room for a lane's parameters. Tensors' arrays begin at multiples of 64 bytes.
func (m *memory) shelve(lane, node int, bytes int64) (r *region, offset int64, err error) {
	if m.shelves == nil {
		m.shelves = map[int]*shelf{}
	}
	s := m.shelves[lane]
	if s == nil {
		s = &shelf{}
		m.shelves[lane] = s
	}
	if s.region == nil || bytes > int64(s.region.arena.Len())-s.used {
		size := max(bytes, leastSpare, min(s.total/4, mostSpare))
		if r, err = m.allocate(parameterRegion, lane, node, size, verbs.AccessLocalWrite, false); err != nil && size > bytes {
			size = bytes
			r, err = m.allocate(parameterRegion, lane, node, size, verbs.AccessLocalWrite, false)
		}
		if err != nil {
			return nil, 0, err
		}
		s.region, s.used, s.total = r, 0, s.total+size
	}
	offset = s.used
	s.used += bytes
	return s.region, offset, nil
}

// allocate makes an arena on a lane's node and registers it with every NIC, as connections fail over from one to another.
func (m *memory) allocate(kind regionKind, lane, node int, bytes int64, access verbs.Access, lazy bool) (*region, error) {
	r := &region{kind: kind, lazy: lazy}
	var err error
	r.arena, err = numa.NewArena(numa.ArenaConfig{Name: fmt.Sprintf("%s-lane%d", regionNames[kind], lane), Bytes: bytes, Node: node,
		Lazy: lazy, Private: access&verbs.AccessRemoteWrite == 0})
	for nic := 0; err == nil && nic < len(m.pds); nic++ {
		var mr verbs.MR
		if mr, err = m.pds[nic].RegisterMR(r.arena.Addr(), uint64(r.arena.Len()), access, r.arena.FD(), 0); err == nil {
			r.mrs = append(r.mrs, mr)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("job %q: %s of lane %d: %w", m.job, regionNames[kind], lane, err), m.deregister(r))
	}
	m.mu.Lock()
	m.regions = append(m.regions, r)
	m.mu.Unlock()
	return r, nil
}

func (m *memory) deregister(r *region) error {
	var errs []error
	for nic, mr := range r.mrs {
		errs = append(errs, m.pds[nic].DeregisterMR(mr))
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	return errors.Join(errs...)
}

// keep takes the arenas of parameters out of what close frees.
func (m *memory) keep() (arenas []*numa.Arena) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		if r.kind == parameterRegion {
			arenas = append(arenas, r.arena)
			r.arena = nil
		}
	}
	return arenas
}

// lkeyOf is the key of memory of the job's own.
func (m *memory) lkeyOf(nic int, addr, bytes uint64) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		if r.holds(addr, bytes) {
			return r.mrs[nic].LKey
		}
	}
	panic("aggregate: an answer lies in no region of its job")
}

func (m *memory) close() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, m.deregister(r))
	}
	for _, pd := range m.pds {
		errs = append(errs, pd.Close())
	}
	return errors.Join(errs...)
}

// MemoryUse is what a job holds in the aggregator, in bytes.
type MemoryUse struct {
	Parameters uint64 // with optimizer state
	Slots      uint64
	Results    uint64
}

func (m *memory) use() (u MemoryUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		switch r.kind {
		case parameterRegion:
			u.Parameters += uint64(r.arena.Len())
		case resultRegion:
			u.Results += uint64(r.arena.Len())
		case slotRegion:
			if !r.lazy {
				u.Slots += uint64(r.arena.Len())
			}
		}
	}
	return u
}
