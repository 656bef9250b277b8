package learn

import (
	"math"
	"slices"
)

// Spread is the median and the quartiles of runs.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"` // first quartile
	High   float64 `json:"high"`
}

// Interval is a mean with the half width of its 95 % interval.
type Interval struct {
	Mean float64 `json:"mean"`
	Half float64 `json:"half"`
}

// Staleness is the distribution of τ.
type Staleness struct {
	Mean float64 `json:"mean"`
	P50  uint64  `json:"p50"`
	P99  uint64  `json:"p99"`
	Max  uint64  `json:"max"`
}

// Row is what a policy does on a cluster, over all runs. Times are in steps of the fastest worker.
type Row struct {
	Cluster string `json:"cluster"`
	Policy  string `json:"policy"`
	Runs    int    `json:"runs"`
	// Missed counts the runs that did not reach the target; the times are of the others.
	Missed    int       `json:"missed"`
	Time      Spread    `json:"time"`
	OverBSP   Spread    `json:"over_bsp"` // time, by run, over BSP's of the same seed
	Accuracy  Interval  `json:"accuracy"` // percent
	Gain      Interval  `json:"gain"`     // points of accuracy above BSP's of the same seed and fold
	PushRate  float64   `json:"push_rate"`
	RateRatio float64   `json:"rate_over_bsp"`
	Updates   float64   `json:"update_rate"`
	Held      float64   `json:"held"` // share of the workers' time
	Dropped   float64   `json:"dropped"`
	Slowest   float64   `json:"slowest_share"` // of the pushes, the last worker's
	MaxLead   uint64    `json:"max_lead"`
	Tau       Staleness `json:"tau"`
	Predicted float64   `json:"predicted,omitempty"` // RateRatio by the formula of Strategy-Switch
	Crossed   Spread    `json:"crossed"`             // models that crossed the core, from each rack
	Switched  *Spread   `json:"switched,omitempty"`  // epoch of the switch, where there was one
	Switches  int       `json:"switches,omitempty"`
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 {
		i := q * float64(len(sorted)-1)
		low := int(i)
		high := min(low+1, len(sorted)-1)
		return sorted[low] + (i-float64(low))*(sorted[high]-sorted[low])
	}
	return Spread{at(0.5), at(0.25), at(0.75)}
}

func interval(values []float64) Interval {
	n := float64(len(values))
	if n == 0 {
		return Interval{}
	}
	mean, squares := 0.0, 0.0
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	if n < 2 {
		return Interval{Mean: mean}
	}
	return Interval{mean, 1.96 * math.Sqrt(squares/(n-1)/n)}
}

func staleness(all []uint64) Staleness {
	if len(all) == 0 {
		return Staleness{}
	}
	slices.Sort(all)
	sum := 0.0
	for _, tau := range all {
		sum += float64(tau)
	}
	last := len(all) - 1
	return Staleness{sum / float64(len(all)), all[last/2], all[last*99/100], all[last]}
}

// how names what is studied: who waits for whom, or how racks meet.
func (s *Setting) how() string {
	if s.Outer.Every > 0 {
		return s.Outer.String()
	}
	return s.Policy.String()
}

// summarise makes a row of the outcomes of one policy, beside BSP's of the same seeds.
func summarise(s Setting, outcomes, bsp []Outcome) Row {
	row := Row{Cluster: s.Cluster.String(), Policy: s.how(), Runs: len(outcomes)}
	var times, over, accuracy, gain, switched, crossed []float64
	var tau []uint64
	n := float64(len(outcomes))
	for i, o := range outcomes {
		accuracy = append(accuracy, 100*o.Accuracy)
		gain = append(gain, 100*(o.Accuracy-bsp[i].Accuracy))
		row.PushRate += float64(o.Pushes) / o.Time / n
		row.RateRatio += float64(o.Pushes) / o.Time * bsp[i].Time / float64(bsp[i].Pushes) / n
		row.Updates += float64(o.Updates) / o.Time / n
		row.Held += o.Held / n
		row.Dropped += float64(o.Dropped) / float64(o.Pushes) / n
		row.Slowest += o.Shares[len(o.Shares)-1] / n
		row.MaxLead = max(row.MaxLead, o.MaxLead)
		tau = append(tau, o.Tau...)
		crossed = append(crossed, o.Crossed)
		if o.Switched > 0 {
			switched = append(switched, o.Switched)
		}
		time, his := o.Time, bsp[i].Time
		if s.Target > 0 {
			time, his = o.ToTarget, bsp[i].ToTarget
		}
		if time == 0 {
			row.Missed++
			continue
		}
		times = append(times, time)
		if his > 0 {
			over = append(over, time/his)
		}
	}
	row.Time, row.OverBSP, row.Accuracy, row.Gain = spread(times), spread(over), interval(accuracy), interval(gain)
	row.Tau = staleness(tau)
	row.Crossed = spread(crossed)
	if row.Switches = len(switched); row.Switches > 0 {
		at := spread(switched)
		row.Switched = &at
	}
	return row
}
