package ratecontrol

import "math"

const (
	greedyLaw = "greedy"
	aceLaw    = "ace"
)

// law holds all in which controllers differ. They share the knapsack and the machine around it.
type law interface {
	// worth writes each group's value. A codec keeps the share of it that it does not lose.
	worth(t *table, to []float64)
	// budget returns a step's bytes if the spec gives none, for a bandwidth in bytes per second and the seconds in which bytes can
	// travel, NaN until they are known. So is the budget of a law that needs them.
	budget(t *table, bandwidth, seconds float64) float64
}

// margin is the share of the bandwidth that a budget uses.
const margin = 0.9

// greedy values a group by the energy of its gradients, and fits a step's bytes into the time that computing leaves them.
type greedy struct{}

func (greedy) worth(t *table, to []float64) {
	typical := t.typical()
	for g, d := range t.density {
		if d < 0 {
			d = typical
		}
		to[g] = t.groups[g].Weight * d * float64(t.groups[g].Elems)
	}
}

func (greedy) budget(_ *table, bandwidth, seconds float64) float64 {
	return margin * bandwidth * max(seconds, 0)
}

// ace is ACE-Sync's. It values a group by its importance (equations 3 and 4), and compresses by bandwidth alone (equation 5).
type ace struct{ alpha, beta, least, most float64 }

// worth gives each element of a group the importance alpha*sigmoid(z(log RMS) + z(log variance)) + (1-alpha)*weight, where z
// centers and scales over the groups: equations 3 and 4 with both factors 1.
func (a ace) worth(t *table, to []float64) {
	rms, variance := make([]float64, len(to)), make([]float64, len(to))
	for g := range to {
		rms[g], variance[g] = logarithm(t.rms[g]), logarithm(t.variance[g])
	}
	standardize(rms)
	standardize(variance)
	for g := range to {
		attention := 1 / (1 + math.Exp(-(rms[g] + variance[g])))
		importance := float64(a.alpha*attention) + float64((1-a.alpha)*t.groups[g].Weight)
		to[g] = importance * float64(t.groups[g].Elems)
	}
}

// budget returns the raw bytes over c = cmin + (cmax-cmin)*exp(-beta*B), with B in Mb/s.
func (a ace) budget(t *table, bandwidth, _ float64) float64 {
	return float64(t.raw) / (a.least + float64((a.most-a.least)*math.Exp(-a.beta*bandwidth*8e-6)))
}

// logarithm returns NaN, which stands for unknown, of numbers that are not positive.
func logarithm(x float64) float64 {
	if x <= 0 {
		return math.NaN()
	}
	return math.Log(x)
}

// standardize makes the mean 0 and the variance 1. What is not a number becomes 0.
func standardize(x []float64) {
	sum, squares, n := 0.0, 0.0, 0.0
	for _, v := range x {
		if !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	mean := sum / max(n, 1)
	for _, v := range x {
		if d := v - mean; !math.IsNaN(d) {
			squares += float64(d * d)
		}
	}
	deviation := math.Sqrt(squares / max(n, 1))
	for i, v := range x {
		if x[i] = (v - mean) / deviation; math.IsNaN(x[i]) || math.IsInf(x[i], 0) {
			x[i] = 0
		}
	}
}
