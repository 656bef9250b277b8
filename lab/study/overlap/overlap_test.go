package overlap

import (
	"math"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
)

func layers(forward, backward time.Duration, elems ...int) (m models.Model) {
	for _, n := range elems {
		m.Tensors = append(m.Tensors, models.Tensor{Shape: []int{n}, Forward: forward, Backward: backward})
		m.Compute.Time += forward + backward
	}
	return m
}

func TestStepsWorkedOutByHand(t *testing.T) {
	const ms = time.Millisecond
	two := layers(10*ms, 20*ms, 1000, 1000) // 4000 bytes each
	whole := Way{Up: 1, Down: 1, Urgent: true}
	for name, tc := range map[string]struct {
		way  Way
		m    models.Model
		rate float64
		want float64
	}{
		"a fast link hides all but the first layer": {whole, two, 4e9, 0.06},
		// The second gradient goes from 20 to 40 ms and back until 60; the first from 40 to 60 and back until 80.
		"one after another": {whole, two, 200e3, 0.1},
		// 20 to 40 up, then its result or the first gradient: the first is more urgent, 40 to 60, 60 to 80; the second's comes at 100.
		"shared link": {Way{Up: 1, Down: 1, Shared: true, Urgent: true}, two, 200e3, 0.11},
		// 20 to 60, then 60 to 100.
		"a ring": {Way{Up: 2}, two, 200e3, 0.12},
		// The second gradient is out at 120 ms without the first, which becomes ready at 40: pieces of it go first, until 140.
		"small pieces let the urgent pass": {Way{Up: 1, Grain: 40, Urgent: true}, two, 40e3, 0.23},
		"whole tensors do not":             {Way{Up: 1, Urgent: true}, two, 40e3, 0.24},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.way.Step(tc.m, tc.rate).Total; math.Abs(got-tc.want) > 1e-3 {
				t.Errorf("a step of %.4f s, expected %.4f", got, tc.want)
			}
		})
	}
}

// No way is faster than its bytes and its computation allow, nor slower than both after each other.
func TestStepsAreWithinTheirBounds(t *testing.T) {
	for _, name := range []string{"alexnet", "vgg19", "googlenet", "resnet50", "inception-v3"} {
		m, err := models.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		bytes := 4 * float64(m.Params())
		for _, way := range Ways(8) {
			last := math.Inf(1)
			for _, gbps := range []float64{1, 10, 56, 400} {
				rate := gbps * 1e9 / 8
				s := way.Step(m, rate)
				link := max(way.Up, way.Down)
				if way.Shared {
					link = way.Up + way.Down
				}
				low, high := max(s.Compute, link*bytes/rate), s.Compute+(way.Up+way.Down)*bytes/rate
				if s.Total < 0.9999*low || s.Total > 1.0001*high {
					t.Errorf("%s, %s, %g Gb/s: a step of %g s, not from %g to %g", name, way.Name, gbps, s.Total, low, high)
				}
				if s.Total > last {
					t.Errorf("%s, %s: %g Gb/s is slower than less", name, way.Name, gbps)
				}
				last = s.Total
			}
		}
	}
}

func TestFromEnoughOnCommunicationDoesNotMatter(t *testing.T) {
	m, err := models.Get("resnet50")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range Ways(8) {
		rate := way.Enough(m, 0.05)
		if s := way.Step(m, rate); s.Total > 1.051*s.Compute {
			t.Errorf("%s: at %g B/s a step takes %g s, computing %g s", way.Name, rate, s.Total, s.Compute)
		}
		if s := way.Step(m, rate/1.1); s.Total < 1.049*s.Compute {
			t.Errorf("%s: already at %g B/s a step takes %g s", way.Name, rate/1.1, s.Total)
		}
	}
}
