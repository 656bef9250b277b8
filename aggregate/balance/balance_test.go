package balance

import (
	"math/rand/v2"
	"testing"
)

// windowOf returns two lanes of one job, in a window.
func windowOf(bytes ...uint64) (lanes [][]Load) {
	for _, b := range bytes {
		lanes = append(lanes, []Load{{b << 20, int(b)}})
	}
	return lanes
}

func TestChunksMoveOnlyWhenLanesStayUneven(t *testing.T) {
	for _, tc := range []struct {
		name    string
		windows [][]uint64 // MiB, or chunks, by lane
		want    []Shift
	}{
		{"even lanes", [][]uint64{{100, 100}, {100, 95}, {95, 100}, {100, 100}}, nil},
		{"one window", [][]uint64{{100, 20}, {100, 100}, {100, 20}, {100, 20}, {100, 100}}, nil},
		{"the other way each time", [][]uint64{{100, 20}, {20, 100}, {100, 20}, {20, 100}, {100, 20}, {20, 100}}, nil},
		{"three windows", [][]uint64{{100, 20}, {100, 20}, {100, 20}}, []Shift{{0, 0, 1, 40}}},
		{"idle lanes", [][]uint64{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, nil},
		{"chunks too large", [][]uint64{{2, 1}, {2, 1}, {2, 1}, {2, 1}}, nil},
		{"again after it settled", [][]uint64{{100, 0}, {100, 0}, {100, 0}, {99, 1}, {98, 2}, {98, 2}, {98, 2}, {98, 2}},
			[]Shift{{0, 0, 1, 50}, {0, 0, 1, 48}}},
		{"of three", [][]uint64{{50, 90, 10}, {50, 90, 10}, {50, 90, 10}}, []Shift{{0, 1, 2, 40}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b Balancer
			var got []Shift
			for _, w := range tc.windows {
				if s, ok := b.Decide(windowOf(w...)); ok {
					got = append(got, s)
				}
			}
			if len(got) != len(tc.want) {
				t.Fatalf("decided %v, want %v", got, tc.want)
			}
			for i := range got {
				if got[i] != tc.want[i] {
					t.Errorf("decided %v, want %v", got, tc.want)
				}
			}
		})
	}
}

// Whatever jobs do, as long as they continue it, lanes become as even as their chunks allow, and then nothing moves.
func TestLanesBecomeEvenAndStaySo(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		lanes, jobs := 2+rng.IntN(4), 1+rng.IntN(4)
		chunks := make([][]int, lanes)
		rate := make([]uint64, jobs) // bytes of a chunk, in a window
		for i := range chunks {
			chunks[i] = make([]int, jobs)
			for j := range chunks[i] {
				chunks[i][j] = rng.IntN(400)
			}
		}
		for j := range rate {
			rate[j] = 1 + rng.Uint64N(1<<20)
		}
		loads := func() (out [][]Load, least, most uint64) {
			least = 1 << 62
			for i := range chunks {
				out = append(out, nil)
				total := uint64(0)
				for j, n := range chunks[i] {
					out[i] = append(out[i], Load{uint64(n) * rate[j], n})
					total += uint64(n) * rate[j]
				}
				least, most = min(least, total), max(most, total)
			}
			return out, least, most
		}
		var b Balancer
		last := 0
		for window := range 1000 {
			now, _, _ := loads()
			if s, ok := b.Decide(now); ok {
				if s.Chunks < 1 || s.Chunks > chunks[s.From][s.Job] {
					t.Fatalf("seed %d: %+v, of %v", seed, s, chunks)
				}
				chunks[s.From][s.Job] -= s.Chunks
				chunks[s.To][s.Job] += s.Chunks
				last = window
			}
		}
		_, least, most := loads()
		if gap := most - least; last > 900 || most >= leastLoad && gap > most/unevenBy && gap > 4<<20 {
			t.Errorf("seed %d: moved last in window %d; lanes have from %d to %d bytes", seed, last, least, most)
		}
	}
}
