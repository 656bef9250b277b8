package data

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
)

// A run that is made again by its journal gives each worker the same rows in the same order, however fast it is now.
func TestAJournalDealsARunAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	o := &api.OpenDataRequest{Job: "j", Rows: 30, Batch: 4, Workers: 2, Asynchronous: true}
	dealt := func(b *Beside, turns ...uint32) (got [2][]uint64) {
		var session [2]string
		var seq [2]uint64
		for rank := range uint32(2) {
			o := proto.CloneOf(o)
			o.Rank, o.Incarnation = rank, "a"
			opened, err := b.Open(o, nil)
			if err != nil {
				t.Fatal(err)
			}
			session[rank] = opened.Session
		}
		for _, rank := range turns {
			seq[rank]++
			r, err := ask(b, session[rank], &api.NextRowsRequest{Seq: seq[rank], Done: seq[rank] - 1})
			if err != nil {
				t.Fatal(err)
			}
			got[rank] = append(got[rank], numbers(r.Rows)...)
		}
		return got
	}
	b := beside(t, path)
	first := dealt(b, 0, 0, 1, 0, 0, 0, 1, 0)
	b.Close()
	again, err := NewBeside("", testTimeout, "", 0, path)
	if err != nil {
		t.Fatal(err)
	}
	if second := dealt(again, 1, 0, 1, 0, 0, 0, 0, 0); !slices.Equal(first[0], second[0]) || !slices.Equal(first[1], second[1]) {
		t.Errorf("the workers got rows %d, and now %d", first, second)
	}
	o.Batch = 5
	again, err = NewBeside("", testTimeout, "", 0, path)
	if err != nil {
		t.Fatal(err)
	}
	o.Incarnation = "a"
	want := "the journal has the set with batch 4, and it is opened with 5"
	if _, err := again.Open(o, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

const (
	manyRows    = 100e6
	manyWorkers = 64
	manyBatch   = 256
)

// interrupted returns the state of a long epoch whose workers hold batches, and fails unless all rows are applied or left, once.
func interrupted(t testing.TB) *api.DataState {
	t.Helper()
	l, err := deal.NewLedger(manyRows, manyWorkers, false, deal.State{})
	if err != nil {
		t.Fatal(err)
	}
	applied, seqs := uint64(0), make([]uint64, manyWorkers)
	for i := range 1000 * manyWorkers {
		w := i % manyWorkers
		seqs[w]++
		lease, err := l.Next(w, seqs[w], 0, manyBatch)
		if err == nil && w%7 != 3 {
			err = l.Done(w, seqs[w])
			applied += lease.Rows()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := l.State()
	if err != nil {
		t.Fatal(err)
	}
	state := &api.DataState{Set: "train", Rows: manyRows, Deal: dealQueue, Epoch: s.Epoch, Cursor: s.Cursor}
	left, at := manyRows-s.Cursor, uint64(0)
	for _, r := range s.Returned {
		if r.From < at || r.To > s.Cursor {
			t.Fatalf("range %v overlaps another, or what was never dealt from %d on", r, s.Cursor)
		}
		left, at = left+r.Len(), r.To
		state.Returned = append(state.Returned, &api.RowRange{Epoch: r.Epoch, From: r.From, To: r.To})
	}
	if applied+left != manyRows {
		t.Fatalf("%d rows are applied and %d left of %d", applied, left, uint64(manyRows))
	}
	return state
}

func resume(t testing.TB, state *api.DataState) *Server {
	t.Helper()
	s, c := NewServer(Config{}), newCaller(0, manyWorkers)
	_, err := s.Open(c, &api.OpenDataRequest{Rows: manyRows, Batch: manyBatch, State: state})
	if err == nil {
		_, err = s.Next(c, &api.NextRowsRequest{Seq: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	states, err := s.States(c.Key)
	if err != nil || !proto.Equal(states[0], state) {
		t.Fatalf("the state has changed: %d ranges, and had %d (%v)", len(states[0].GetReturned()), len(state.Returned), err)
	}
	return s
}

func TestAHundredMillionRowsGoOnWithoutLossOrRepetition(t *testing.T) { resume(t, interrupted(t)) }

func BenchmarkResume(b *testing.B) {
	state := interrupted(b)
	for b.Loop() {
		resume(b, state)
	}
}
