package store

import (
	"errors"
	"fmt"
	"sync"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// Kind is the use of a region.
type Kind int

const (
	Parameters Kind = iota
	Slots
	Results
)

var kindNames = [...]string{"parameters", "slots", "results"}

// Region is registered memory of a job.
type Region struct {
	kind  Kind
	lazy  bool // its pages are never touched
	arena *numa.Arena
	mrs   []verbs.MR // by NIC of the engine
}

// Addr returns the address at which the region begins, here and for a NIC.
func (r *Region) Addr() uint64 { return r.mrs[0].Addr }

// LKey returns a NIC's local key of the region.
func (r *Region) LKey(nic int) uint32 { return r.mrs[nic].LKey }

// RKey returns a NIC's remote key of the region.
func (r *Region) RKey(nic int) uint32 { return r.mrs[nic].RKey }

// Bytes returns n bytes at an offset.
func (r *Region) Bytes(offset uint64, n int) []byte { return r.arena.Bytes()[offset:][:n] }

func (r *Region) holds(addr, bytes uint64) bool {
	return addr >= r.Addr() && addr-r.Addr() <= r.mrs[0].Length && bytes <= r.mrs[0].Length-(addr-r.Addr())
}

// Memory is all registered memory of a job, in its own protection domain on every NIC. Any goroutine may use it.
type Memory struct {
	PDs []*verbs.PD // protection domains, by NIC

	job     string
	mu      sync.Mutex
	regions []*Region
	shelves map[int]shelf // by lane; callers that add tensors use it, one at a time
}

// shelf is a region with room left for parameters. Tensors registered one by one share regions, because a device has few.
type shelf struct {
	region *Region
	used   int64
	total  int64 // bytes of all the lane's regions
}

// A new region has spare room for more parameters: a quarter of the lane's bytes, within these bounds.
const (
	leastSpare = 256 << 10
	mostSpare  = 64 << 20
)

// NewMemory makes a job's memory on devices: a protection domain on each.
func NewMemory(job string, devices []*verbs.Device) (*Memory, error) {
	m := &Memory{job: job, shelves: map[int]shelf{}}
	for _, d := range devices {
		pd, err := d.AllocPD()
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.PDs = append(m.PDs, pd)
	}
	return m, nil
}

// shelve finds room for a lane's parameters. Tensors' arrays begin at multiples of 64 bytes.
func (m *Memory) shelve(lane, node int, bytes int64) (r *Region, offset int64, err error) {
	s := m.shelves[lane]
	if s.region == nil || bytes > int64(s.region.arena.Len())-s.used {
		size := max(bytes, leastSpare, min(s.total/4, mostSpare))
		if r, err = m.Allocate(Parameters, lane, node, size, verbs.AccessLocalWrite, false); err != nil && size > bytes {
			size = bytes
			r, err = m.Allocate(Parameters, lane, node, size, verbs.AccessLocalWrite, false)
		}
		if err != nil {
			return nil, 0, err
		}
		s = shelf{region: r, total: s.total + size}
	}
	offset = s.used
	s.used += bytes
	m.shelves[lane] = s
	return s.region, offset, nil
}

// Allocate makes an arena on a lane's node and registers it with every NIC, because connections fail over from one NIC to another.
func (m *Memory) Allocate(kind Kind, lane, node int, bytes int64, access verbs.Access, lazy bool) (*Region, error) {
	r := &Region{kind: kind, lazy: lazy}
	var err error
	r.arena, err = numa.NewArena(numa.ArenaConfig{Name: fmt.Sprintf("%s-lane%d", kindNames[kind], lane), Bytes: bytes, Node: node,
		Lazy: lazy, Private: access&verbs.AccessRemoteWrite == 0})
	for nic := 0; err == nil && nic < len(m.PDs); nic++ {
		var mr verbs.MR
		if mr, err = m.PDs[nic].RegisterMR(r.arena.Addr(), uint64(r.arena.Len()), access, r.arena.FD(), 0); err == nil {
			r.mrs = append(r.mrs, mr)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("job %q: %s of lane %d: %w", m.job, kindNames[kind], lane, err), m.deregister(r))
	}
	m.mu.Lock()
	m.regions = append(m.regions, r)
	m.mu.Unlock()
	return r, nil
}

func (m *Memory) deregister(r *Region) error {
	var errs []error
	for nic, mr := range r.mrs {
		errs = append(errs, m.PDs[nic].DeregisterMR(mr))
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	return errors.Join(errs...)
}

// Keep takes the arenas of parameters from the memory, so that Close does not free them.
func (m *Memory) Keep() (arenas []*numa.Arena) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		if r.kind == Parameters {
			arenas = append(arenas, r.arena)
			r.arena = nil
		}
	}
	return arenas
}

// LKey returns a NIC's key of the job's own memory at addr.
func (m *Memory) LKey(nic int, addr, bytes uint64) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		if r.holds(addr, bytes) {
			return r.mrs[nic].LKey
		}
	}
	panic("store: an answer lies in no region of its job")
}

func (m *Memory) Close() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, m.deregister(r))
	}
	for _, pd := range m.PDs {
		errs = append(errs, pd.Close())
	}
	return errors.Join(errs...)
}

// Use is the memory of a job in the aggregator, in bytes.
type Use struct {
	Parameters uint64 // with optimizer state
	Slots      uint64
	Results    uint64
}

func (m *Memory) Use() (u Use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		switch r.kind {
		case Parameters:
			u.Parameters += uint64(r.arena.Len())
		case Results:
			u.Results += uint64(r.arena.Len())
		case Slots:
			if !r.lazy {
				u.Slots += uint64(r.arena.Len())
			}
		}
	}
	return u
}
