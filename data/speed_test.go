package data

import "testing"

// In virtual time one of four workers takes three times as long for a batch. Static shards wait for it, a queue does not.
func TestAQueueCancelsDifferencesInSpeed(t *testing.T) {
	const rows, size = 40_000, 10
	slowness := []int{1, 1, 1, 3}
	static := 3 * rows / len(slowness) / size
	l, err := NewLedger(rows, len(slowness), false, State{})
	if err != nil {
		t.Fatal(err)
	}
	seqs, free, dynamic := make([]uint64, len(slowness)), make([]int, len(slowness)), 0
	for now := 0; ; now++ {
		for w := range slowness {
			if free[w] > now {
				continue
			}
			if seqs[w] > 0 {
				if err := l.Done(w, seqs[w]); err != nil {
					t.Fatal(err)
				}
			}
			seqs[w]++
			lease, err := l.Next(w, seqs[w], 0, size)
			if err != nil {
				t.Fatal(err)
			}
			if lease.Rows() > 0 {
				free[w] = now + slowness[w]
				dynamic = max(dynamic, free[w])
			} else if lease.End {
				if ratio := float64(static) / float64(dynamic); ratio < 2.3 {
					t.Errorf("an epoch takes %d with shards and %d with a queue: %.2f times as long, want 2.3 of at most 2.5", static, dynamic, ratio)
				}
				return
			}
		}
	}
}
