package hierarchy

import (
	"fmt"
	"math"
)

// Limits is what binds one aggregator. Rates are bytes per second; 0: not known, so it does not bind.
type Limits struct {
	NIC    float64 // all NICs together, each direction
	PCIe   float64 // all NICs' PCIe lanes together, each direction
	Memory float64 // reads and writes together
	Fold   float64 // gradients summed, by all cores
}

// Capacity is how many workers an aggregator carries, and what binds it.
type Capacity struct {
	Workers int
	Binding string
}

// Capacity returns how many workers the aggregator carries, each exchanging a model of so many bytes on the wire per step of so
// many seconds: the least of rate * step / bytes over what binds. A gradient crosses a NIC and its PCIe lanes once in each
// direction, and memory memoryTouches times: twice (written by the NIC, read by the sum) where it does not stay in the last-level
// cache, and half as often where it does.
func (l *Limits) Capacity(model, step, memoryTouches float64) (Capacity, error) {
	if !(model > 0) || !(step > 0) || !(memoryTouches >= 0) {
		return Capacity{}, fmt.Errorf("%w: a model of %g bytes, a step of %g s, %g touches of memory", ErrCluster, model,
			step, memoryTouches)
	}
	best := Capacity{Workers: math.MaxInt, Binding: "nothing that is known"}
	for _, r := range []struct {
		name  string
		rate  float64
		bytes float64
	}{
		{"NIC", l.NIC, model}, {"PCIe", l.PCIe, model}, {"memory", l.Memory, model * memoryTouches}, {"cores", l.Fold, model},
	} {
		if r.rate == 0 || r.bytes == 0 {
			continue
		}
		if n := int(r.rate * step / r.bytes); n < best.Workers {
			best = Capacity{n, r.name}
		}
	}
	return best, nil
}
