package data

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// Workers that get their recorded batches apply the same ones in the same order, whatever died when they were recorded.
func TestReplaysDealWhatWasApplied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, workers := rapid.Uint64Range(1, 40).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "workers")
		var record *Record
		r := newTrial(t, total, workers, func(s State) Dealer {
			l, err := NewLedger(total, workers, false, s)
			if err != nil {
				t.Fatal(err)
			}
			if record == nil {
				record = NewRecord(l, workers)
			} else {
				record.GoOn(l)
			}
			return record
		})
		applied := make([][][]Range, workers)
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			worker := rapid.IntRange(0, workers-1).Draw(t, "worker")
			switch w := &r.workers[worker]; rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				r.lose(worker)
			case 1:
				r.save()
				r.crash() // with all that was applied
			case 2, 3, 4, 5:
				if len(w.held) > 0 {
					applied[worker] = append(applied[worker], w.held[0].Ranges)
					r.done(worker, 0)
				}
			default:
				if w.ended {
					w.epoch, w.ended = w.epoch+1, false
				}
				r.next(worker, rapid.Uint64Range(1, 9).Draw(t, "count"))
			}
		}
		record.GoOn(nil)
		for worker := range workers {
			var got [][]Range
			for i, b := range record.batches[worker] {
				l, err := record.Next(worker, uint64(i+1), b.Epoch, 1)
				if err != nil {
					t.Fatal(err)
				}
				if len(l.Ranges) > 0 {
					got = append(got, l.Ranges)
				}
			}
			if n := len(applied[worker]); len(got) < n || n > 0 && !reflect.DeepEqual(got[:n], applied[worker]) {
				t.Fatalf("worker %d gets %v again, and had applied %v", worker, got, applied[worker])
			}
		}
	})
}
