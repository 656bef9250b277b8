package planner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/hierarchy"
)

// evenLinks are the links of racks with like uplinks, as a probe in rounds finds them; pod is the rate of a pod's uplink.
func evenLinks(racks, pods int, uplink, pod, latency float64) *Links {
	l := &Links{Pods: pods}
	size := racks / max(pods, 1)
	for i := range racks {
		l.Names = append(l.Names, fmt.Sprint(i))
		l.Rate, l.Latency = append(l.Rate, make([]float64, racks)), append(l.Latency, make([]float64, racks))
	}
	for _, round := range Rounds(racks) {
		for _, transfer := range round {
			i, j := transfer[0], transfer[1]
			out, in := 0, 0 // how many share the uplink of i's pod, and of j's
			for _, other := range round {
				if other[0]/size == other[1]/size {
					continue
				}
				if other[0]/size == i/size {
					out++
				}
				if other[1]/size == j/size {
					in++
				}
			}
			l.Latency[i][j], l.Rate[i][j] = latency, uplink
			if pods > 1 && i/size != j/size {
				l.Rate[i][j] = min(uplink, pod/float64(max(out, in)))
			}
		}
	}
	return l
}

func TestEveryLinkIsMeasuredOnceAndAlone(t *testing.T) {
	for racks := 1; racks <= 20; racks++ {
		seen := map[[2]int]bool{}
		for _, round := range Rounds(racks) {
			busy := map[int]bool{}
			for _, transfer := range round {
				if seen[transfer] || transfer[0] == transfer[1] || busy[transfer[0]] || busy[transfer[1]] {
					t.Fatalf("%d racks: %v in round %v", racks, transfer, round)
				}
				seen[transfer], busy[transfer[0]], busy[transfer[1]] = true, true, true
			}
		}
		if len(seen) != racks*(racks-1) {
			t.Errorf("%d racks: %d links are measured", racks, len(seen))
		}
	}
}

func TestMeasuredLinksPredictWhatDeclaredOnesDo(t *testing.T) {
	const model, chunk, latency = 100e6, 32 << 10, 20e-6
	for _, tc := range []struct {
		racks, pods int
		uplink, pod float64
	}{{2, 1, 1e9, 0}, {3, 1, 1e9, 0}, {8, 1, 2e9, 0}, {4, 2, 1e9, 1e9}, {8, 2, 1e9, 2e9}, {8, 4, 1e9, 1e9}, {12, 3, 1e9, 1e8}} {
		c := Cluster{Racks: tc.racks, Workers: 1, Pods: tc.pods, WorkerNIC: 1e18, AggregatorNIC: 1e18, Uplink: tc.uplink,
			PodUplink: tc.pod, CoreLatency: latency}
		l := evenLinks(tc.racks, tc.pods, tc.uplink, tc.pod, latency)
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		for _, s := range []hierarchy.Shape{hierarchy.Sharded, hierarchy.Root, hierarchy.Chain, hierarchy.Pods} {
			top := l.topology(s)
			want, got := c.Predict(s, model, chunk), l.Predict(top, model, chunk)
			if got.Unfit != "" {
				continue
			}
			if want.Unfit != "" || math.Abs(got.Bound/want.Bound-1) > 1e-9 {
				t.Errorf("%d racks in %d pods, %v: bound %g by %s, the declared cluster's is %g by %s (%v)", tc.racks, tc.pods, s, got.Bound,
					got.Binding, want.Bound, want.Binding, want.Unfit)
			}
			if r := got.Fill / want.Fill; r < 0.99 || r > 2 {
				t.Errorf("%d racks in %d pods, %v: fill %g, the declared cluster's is %g", tc.racks, tc.pods, s, got.Fill, want.Fill)
			}
		}
	}
}

func TestTheShapeFollowsTheLinks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		links *Links
		slow  map[int]float64 // a rack's uplink, in both directions
		once  bool
		want  hierarchy.Shape
		says  string
	}{
		{"even", evenLinks(3, 1, 1e9, 0, 1e-5), nil, false, hierarchy.Sharded, "rack"},
		{"two racks", evenLinks(2, 1, 1e9, 0, 1e-5), map[int]float64{1: 1e8}, false, hierarchy.Sharded, "rack"},
		{"a slow last rack", evenLinks(4, 1, 1e9, 0, 1e-5), map[int]float64{3: 1e8}, false, hierarchy.Root, "rack 3"},
		{"a slow first rack", evenLinks(4, 1, 1e9, 0, 1e-5), map[int]float64{0: 1e8}, false, hierarchy.Chain, "rack 0"},
		{"a slow first rack, sums in bf16", evenLinks(4, 1, 1e9, 0, 1e-5), map[int]float64{0: 1e8}, true, hierarchy.Sharded, "rack 0"},
		{"slow pods", evenLinks(4, 2, 1e9, 1e9, 1e-5), nil, false, hierarchy.Pods, "rack"},
		{"fast pods", evenLinks(4, 2, 1e9, 4e9, 1e-5), nil, false, hierarchy.Sharded, "rack"},
	} {
		for rack, rate := range tc.slow {
			for other := range tc.links.Names {
				tc.links.Rate[rack][other], tc.links.Rate[other][rack] = rate, rate
			}
		}
		all, err := tc.links.Choose(100e6, 32<<10, tc.once)
		if err != nil {
			t.Fatal(err)
		}
		got := Prefer(all, hierarchy.Sharded)
		if got != tc.want || !strings.Contains(all[0].Binding, tc.says) {
			t.Errorf("%s: shape %v, want %v: %+v", tc.name, got, tc.want, all)
		}
	}
}

func TestASmallGainChangesNoShape(t *testing.T) {
	all := []Prediction{{Shape: hierarchy.Root, Seconds: 0.96}, {Shape: hierarchy.Sharded, Seconds: 1},
		{Shape: hierarchy.Pods, Unfit: "bad"}}
	if got := Prefer(all, hierarchy.Sharded); got != hierarchy.Sharded {
		t.Errorf("a gain of 4%%: %v", got)
	}
	all[0].Seconds = 0.94
	if got := Prefer(all, hierarchy.Sharded); got != hierarchy.Root {
		t.Errorf("a gain of 6%%: %v", got)
	}
	if got := Prefer(all, hierarchy.Pods); got != hierarchy.Root {
		t.Errorf("a shape that does not fit is kept: %v", got)
	}
}

func TestAFasterLinkSlowsNoShape(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		racks, pods := 2+rng.IntN(7), 1
		if racks%2 == 0 && racks > 2 {
			pods = 1 + rng.IntN(2)
		}
		l := evenLinks(racks, pods, 1e9, 1e9, 1e-5)
		for i := range racks {
			for j := range racks {
				l.Rate[i][j] *= 0.1 + rng.Float64()
			}
		}
		before, err := l.Choose(1e7, 32<<10, false)
		if err != nil {
			t.Fatal(err)
		}
		from := rng.IntN(racks)
		l.Rate[from][(from+1)%racks] *= 3
		for _, p := range before {
			if now := l.Predict(l.topology(p.Shape), 1e7, 32<<10); p.Unfit == "" && now.Seconds > p.Seconds*(1+1e-12) {
				t.Errorf("%d racks, %v: %g s, %g s once a link is faster", racks, p.Shape, p.Seconds, now.Seconds)
			}
		}
	}
}

func TestBadLinksAreRefusedByName(t *testing.T) {
	for _, tc := range []struct {
		spoil func(*Links)
		want  string
	}{
		{func(l *Links) { l.Rate[1][2] = 0 }, `the link from rack "1" to rack "2" carries 0 B/s`},
		{func(l *Links) { l.Rate[2][0] = math.NaN() }, `from rack "2" to rack "0"`},
		{func(l *Links) { l.Latency[0][1] = -1 }, `after -1 s`},
		{func(l *Links) { l.Pods = 2 }, "in 2 pods"},
	} {
		l := evenLinks(3, 1, 1e9, 0, 0)
		tc.spoil(l)
		if _, err := l.Choose(1e6, 1e4, false); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want it to say %q", err, tc.want)
		}
	}
}
