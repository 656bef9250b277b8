package learn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

const maxWorkers = 64

// Cluster is workers with the time that a step takes each, in units of the fastest's.
type Cluster struct {
	Steps []float64
	// Straggle is the share of steps that take straggleFactor times as long, whoever's they are.
	Straggle float64
}

// straggleFactor is how much longer a step takes that straggles.
const straggleFactor = 5

// ParseCluster reads the step times of workers, such as "1,1,3,3"; "1,1,1,1~0.05" lets one step in twenty straggle.
func ParseCluster(s string) (Cluster, error) {
	var c Cluster
	times, share, straggles := strings.Cut(s, "~")
	if straggles {
		v, err := strconv.ParseFloat(share, 64)
		if err != nil || !(v >= 0 && v <= 1) {
			return c, fmt.Errorf("cluster %q: the share of steps that straggle is %q: use 0 to 1", s, share)
		}
		c.Straggle = v
	}
	for t := range strings.SplitSeq(times, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(t), 64)
		if err != nil || !(v >= 0.01 && v <= 1000) {
			return c, fmt.Errorf("cluster %q: the step time %q: use 0.01 to 1000, as in 1,1,3,3", s, t)
		}
		c.Steps = append(c.Steps, v)
	}
	if len(c.Steps) > maxWorkers {
		return c, fmt.Errorf("cluster %q: %d workers: use 1 to %d", s, len(c.Steps), maxWorkers)
	}
	return c, nil
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
