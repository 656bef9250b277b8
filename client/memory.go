package client

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// Bytes views a slice's memory as bytes, without a copy.
func Bytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// Floats views memory of f32 elements as such, without a copy; it panics if b is not a whole number of them, aligned.
func Floats(b []byte) []float32 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b)%4 != 0 || uintptr(p)%4 != 0 {
		panic("client: not a slice of float32")
	}
	return unsafe.Slice((*float32)(p), len(b)/4)
}

// memory is an arena registered with the transport.
type memory struct {
	*numa.Arena
	mrs []verbs.MR // by NIC
}

// Alloc returns memory that the transport reaches itself: gradients and results there are never copied by this process. It lasts
// until Close. Use few large pieces rather than many small ones.
func (w *Worker) Alloc(bytes int) ([]byte, error) {
	w.using.RLock()
	defer w.using.RUnlock()
	if err := w.Err(); err != nil {
		return nil, fmt.Errorf("allocate: %w", err)
	}
	w.registering.Lock()
	defer w.registering.Unlock()
	m, err := w.newMemory("tensors", bytes)
	if err != nil {
		return nil, err
	}
	arenas := append(slices.Clone(w.allocated()), m)
	w.arenas.Store(&arenas)
	if w.c != nil {
		if rc := cworker.Region(w.c, m.mrs); rc < 0 {
			return nil, w.dataError("register memory", rc)
		}
	}
	return m.Bytes(), nil
}

// allocated lists the memory that Alloc gave out.
func (w *Worker) allocated() []*memory {
	if arenas := w.arenas.Load(); arenas != nil {
		return *arenas
	}
	return nil
}

func (w *Worker) newMemory(what string, bytes int) (*memory, error) {
	a, err := numa.NewArena(numa.ArenaConfig{Name: fmt.Sprintf("rackweave %s %s", w.cfg.Job, what), Bytes: int64(bytes), Node: numa.AnyNode})
	if err != nil {
		return nil, err
	}
	m := &memory{Arena: a}
	for _, n := range w.nics {
		mr, err := n.pd.RegisterMR(a.Addr(), uint64(a.Len()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, a.FD(), 0)
		if err != nil {
			return nil, errors.Join(err, w.free(m))
		}
		m.mrs = append(m.mrs, mr)
	}
	return m, nil
}

// free gives registered memory back.
func (w *Worker) free(m *memory) error {
	var errs []error
	for i, mr := range m.mrs {
		errs = append(errs, w.nics[i].pd.DeregisterMR(mr))
	}
	return errors.Join(append(errs, m.Close())...)
}

// holds tells whether a buffer lies in the arena.
func (m *memory) holds(b []byte) bool {
	p, start := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(m.Addr())
	return p >= start && p-start+uintptr(len(b)) <= uintptr(m.Len())
}

// usualCache is taken for the last-level cache of a machine that does not tell its size.
const usualCache = 32 << 20

func lastLevelCache() uint64 {
	topo, err := numa.Discover("")
	if err != nil {
		return usualCache
	}
	largest := int64(0)
	for _, c := range topo.CPUs {
		largest = max(largest, c.L3.Bytes)
	}
	if largest == 0 {
		return usualCache
	}
	return uint64(largest)
}
