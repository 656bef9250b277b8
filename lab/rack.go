package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Shape is an arrangement of guests.
type Shape string

// The shapes of racks.
const (
	// Single is one guest with one device, which reaches itself.
	Single Shape = "single"
	// TwoNodes is one guest with two NUMA nodes and a NIC on each; each device reaches itself.
	TwoNodes Shape = "two-nodes"
	// Pair is two guests joined by a wire.
	Pair Shape = "pair"
	// Trio is three guests on one wire: an aggregator and two workers.
	Trio Shape = "trio"
)

// Shapes lists the shapes.
func Shapes() []Shape { return []Shape{Single, TwoNodes, Pair, Trio} }

// Configs returns the guests of a shape, not yet booted.
func (s Shape) Configs() ([]Config, error) {
	switch s {
	case Single:
		return []Config{{Name: "aggregator", NICs: []NIC{{Addr: "10.77.0.1/24"}}}}, nil
	case TwoNodes:
		return []Config{{Name: "aggregator", Nodes: 2, MemoryMB: 2048, NICs: []NIC{
			{Wire: NewWire(), Node: 0, Addr: "10.77.0.1/24"},
			{Wire: NewWire(), Node: 1, Addr: "10.77.1.1/24"},
		}}}, nil
	case Pair:
		return onOneWire("aggregator", "worker"), nil
	case Trio:
		return onOneWire("aggregator", "worker0", "worker1"), nil
	}
	return nil, fmt.Errorf("unknown shape %q: use one of %v", string(s), Shapes())
}

func onOneWire(names ...string) []Config {
	w := NewWire()
	var cfgs []Config
	for i, name := range names {
		cfgs = append(cfgs, Config{Name: name, NICs: []NIC{{Wire: w, Addr: fmt.Sprintf("10.77.0.%d/24", i+1)}}})
	}
	return cfgs
}

// Rack is a set of running guests.
type Rack struct{ Guests []*Guest }

// BootAll boots guests side by side. On an error it leaves none.
func BootAll(ctx context.Context, cfgs ...Config) (*Rack, error) {
	r := &Rack{Guests: make([]*Guest, len(cfgs))}
	errs := make([]error, len(cfgs))
	var wg sync.WaitGroup
	for i, cfg := range cfgs {
		wg.Go(func() { r.Guests[i], errs[i] = Boot(ctx, cfg) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close closes all guests and returns the complaints of their kernels.
func (r *Rack) Close() error {
	var errs []error
	for _, g := range r.Guests {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}
