package learn

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Cluster is workers with the time that a step takes each, in units of the fastest's.
type Cluster struct {
	Steps []float64
	// Straggle is the share of steps that take straggleFactor times as long, whoever's they are.
	Straggle float64
}

// straggleFactor is the time of a straggling step over an ordinary one's.
const straggleFactor = 5

// mustCluster reads clusters that are written here as the step times of their workers, such as "1,1,3,3"; in "1,1,1,1~0.05" one
// step in twenty straggles.
func mustCluster(names ...string) []Cluster {
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			panic("learn: " + err.Error())
		}
		return v
	}
	var all []Cluster
	for _, s := range names {
		var c Cluster
		times, share, straggles := strings.Cut(s, "~")
		if straggles {
			c.Straggle = number(share)
		}
		for t := range strings.SplitSeq(times, ",") {
			c.Steps = append(c.Steps, number(t))
		}
		all = append(all, c)
	}
	return all
}

func (c Cluster) String() string {
	parts := make([]string, len(c.Steps))
	for i, v := range c.Steps {
		parts[i] = strconv.FormatFloat(v, 'g', -1, 64)
	}
	text := strings.Join(parts, ",")
	if c.Straggle > 0 {
		text += "~" + strconv.FormatFloat(c.Straggle, 'g', -1, 64)
	}
	return text
}

const (
	// unit is the time of a step of length 1, in virtual nanoseconds.
	unit = 1_000_000
	// jitter is the deviation of the logarithm of step times.
	jitter = 0.1
	// wire is the time from a gradient to the next step's parameters, beside waiting: latency, and the bytes at the link's rate.
	wire = unit / 50
)

// stepTime draws how long a worker's next step takes.
func (c Cluster) stepTime(w int, r *rand.Rand) int64 {
	t := c.Steps[w] * math.Exp(jitter*r.NormFloat64())
	if r.Float64() < c.Straggle {
		t *= straggleFactor
	}
	return int64(t*unit) + wire
}
