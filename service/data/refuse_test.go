package data

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service/api"
)

func serveBeside(t *testing.T, dir string) *Beside {
	t.Helper()
	b, err := NewBeside(dir, testTimeout, filepath.Join(dir, "journal"), 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// What one worker sends leaves the journal whole, for the others and for the service that comes next.
func TestNoWorkerBreaksTheJournal(t *testing.T) {
	dir := t.TempDir()
	b := serveBeside(t, dir)
	open, err := b.Open(&api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Rows: 1e6, Batch: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= deal.MaxLeases; seq++ {
		if _, err := ask(b, open.Session, &api.NextRowsRequest{Seq: seq}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask(b, open.Session, &api.NextRowsRequest{Seq: deal.MaxLeases + 1}); !errors.Is(err, deal.ErrSequence) {
		t.Errorf("leases without bound: %v", err)
	}
	for i, seconds := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		r := &api.NextRowsRequest{Done: uint64(1 + i), Seconds: seconds}
		if _, err := ask(b, open.Session, r); err == nil || !strings.Contains(err.Error(), "use a finite number") {
			t.Errorf("%v seconds: %v", seconds, err)
		}
	}
	if _, err := ask(b, open.Session, &api.NextRowsRequest{Done: 1, Seconds: 1}); err != nil {
		t.Error(err)
	}
	b.Close()
	b = serveBeside(t, dir)
	if _, err := ask(b, open.Session, &api.NextRowsRequest{Seq: deal.MaxLeases + 1}); err != nil {
		t.Error(err)
	}
}

func TestTheJournalReachesTheDisk(t *testing.T) {
	b := serveBeside(t, t.TempDir())
	open := alone(t, b, &api.OpenDataRequest{Rows: 10, Batch: 2})
	for seq := range uint64(2) {
		if _, err := ask(b, open.Session, &api.NextRowsRequest{Seq: seq + 1}); err != nil {
			t.Fatal(err)
		}
		if b.journal.synced == b.journal.size {
			t.Error("a call waits for the disk")
		}
		if b.Tend(); b.journal.synced != b.journal.size {
			t.Errorf("%d of %d bytes are flushed", b.journal.synced, b.journal.size)
		}
	}
}

func TestAJournalIsOfOneManifest(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	divide(t, path, 1)
	b := serveBeside(t, dir)
	if _, err := b.Open(&api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Manifest: "m", Batch: 1}, nil); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	divide(t, path, 2)
	b, err := NewBeside(dir, testTimeout, filepath.Join(dir, "journal"), 1<<20, "")
	if err == nil || !strings.Contains(err.Error(), "the manifest of another input") {
		t.Errorf("a journal goes on with another manifest: %v", err)
		b.Close()
	}
}

func TestSetsThatCannotBeOpenedLeaveNothing(t *testing.T) {
	b := serveBeside(t, t.TempDir())
	r := &api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Rows: 5, Batch: 1}
	if _, err := b.Open(r, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		bad := &api.OpenDataRequest{Job: "j", Set: fmt.Sprint("set", i), Workers: 1, Incarnation: "a", Manifest: "m", Batch: 1}
		if _, err := b.Open(bad, nil); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("a manifest that is not there: %v", err)
		}
	}
	if n, m := len(b.sets), len(b.sessions); n != 1 || m != 1 {
		t.Errorf("%d sets and %d sessions are left, want 1", n, m)
	}
}

// charged are the bytes that an account takes.
type charged struct{ set, call int64 }

func (c *charged) account() *Account {
	return &Account{
		Set: func(n int64) (func(), error) {
			c.set += n
			return func() { c.set -= n }, nil
		},
		Call: func(n int64) error {
			c.call += n
			return nil
		},
	}
}

func TestStatesAreCharged(t *testing.T) {
	b := serveBeside(t, t.TempDir())
	const ranges = 1000
	state := &api.DataState{Set: "train", Rows: 1e6, Deal: dealQueue, Cursor: 2 * ranges}
	for i := range uint64(ranges) {
		state.Returned = append(state.Returned, &api.RowRange{From: 2 * i, To: 2*i + 1})
	}
	r := &api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Rows: 1e6, Batch: 1}
	var without, with charged
	if _, err := b.Open(r, without.account()); err != nil {
		t.Fatal(err)
	}
	r.State, r.Incarnation = state, "b"
	open, err := b.Open(r, with.account())
	if err != nil {
		t.Fatal(err)
	}
	if without.set != 0 || with.set < ranges*rangeCost {
		t.Errorf("%d bytes are charged for a set that has begun anew, and %d for its state", without.set, with.set)
	}
	c, err := b.Caller(open.Session, with.account())
	if err == nil {
		_, err = b.State(c, &api.DataStateRequest{})
	}
	if err != nil || with.call < ranges*rangeCost {
		t.Errorf("%d bytes are charged for an answer with %d ranges (%v)", with.call, ranges, err)
	}
}

// stuck is a dealer whose batches do not come until it is let go.
type stuck struct {
	deal.Dealer
	asked, let chan struct{}
}

func (s *stuck) Next(int, uint64, uint64, uint64) (deal.Lease, error) {
	close(s.asked)
	<-s.let
	return deal.Lease{Seq: 1, End: true}, nil
}

func TestNoSetWaitsForAnother(t *testing.T) {
	b, slow := serveBeside(t, t.TempDir()), &stuck{asked: make(chan struct{}), let: make(chan struct{})}
	b.dealer = func(_ string, terms *api.OpenDataRequest, d deal.Dealer) (deal.Dealer, error) {
		if terms.Set == "slow" {
			return slow, nil
		}
		return d, nil
	}
	sessions := map[string]string{}
	for _, name := range []string{"slow", "fast"} {
		slow.Dealer, _ = deal.NewLedger(5, 1, false, deal.State{})
		open, err := b.Open(&api.OpenDataRequest{Job: "j", Set: name, Workers: 1, Incarnation: "a", Rows: 5, Batch: 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		sessions[name] = open.Session
	}
	ended := make(chan error)
	go func() {
		_, err := ask(b, sessions["slow"], &api.NextRowsRequest{Set: "slow", Seq: 1})
		ended <- err
	}()
	<-slow.asked
	late := time.AfterFunc(10*time.Second, func() { close(slow.let) })
	_, err := ask(b, sessions["fast"], &api.NextRowsRequest{Set: "fast", Seq: 1})
	if !late.Stop() {
		t.Fatal("a set got no batch before another had its own")
	}
	close(slow.let)
	if err := errors.Join(err, <-ended); err != nil {
		t.Error(err)
	}
}

func TestShardsHaveRowsAndNoDraws(t *testing.T) {
	dir := t.TempDir()
	w, err := manifest.NewWriter(filepath.Join(dir, "first"))
	if err != nil {
		t.Fatal(err)
	}
	for row := range 3 {
		if err := w.Add(row); err != nil {
			t.Fatal(err)
		}
	}
	h := manifest.Header{Input: "x", How: "stratified", Start: "first", Workers: 3}
	if err := errors.Join(w.Finish(&h, []string{"a", "b", "c"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	b := serveBeside(t, dir)
	r := &api.OpenDataRequest{Job: "j", Workers: 3, Incarnation: "a", Manifest: "first", Deal: "shards", Batch: 1}
	if _, err := b.Open(r, nil); err == nil || !strings.Contains(err.Error(), "no rows for worker 1") {
		t.Errorf("shards without rows: %v", err)
	}
	digest := divide(t, filepath.Join(dir, "m"), 1)
	r.Manifest, r.State = "m", &api.DataState{Set: "train", Rows: inManifest, Digest: digest[:], Deal: "shards", Step: 3,
		Draws: []*api.GroupDraws{{Rows: []uint64{36, 18, 6}}}}
	if _, err := b.Open(r, nil); err == nil || !strings.Contains(err.Error(), "only a queue favours groups") {
		t.Errorf("shards with draws: %v", err)
	}
}

func TestAStateWithoutANameIsTheBeginning(t *testing.T) {
	b := serveBeside(t, t.TempDir())
	open, err := b.Open(&api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Rows: 5, Batch: 5,
		State: &api.DataState{Epoch: 3, Draws: []*api.GroupDraws{{}, {Rows: []uint64{1 << 62, 1 << 62}}}}}, nil)
	if err != nil || open.Epoch != 0 {
		t.Fatal(open, err)
	}
	if r, err := ask(b, open.Session, &api.NextRowsRequest{Seq: 1}); err != nil || len(r.Rows) != 5*8 {
		t.Errorf("%v (%v)", r, err)
	}
}

func TestErrorsAreShortWhateverACallHas(t *testing.T) {
	b, long := serveBeside(t, t.TempDir()), strings.Repeat("x", 1e5)
	for _, r := range []*api.OpenDataRequest{
		{Digest: []byte(long)}, {Manifest: long}, {Deal: long}, {State: &api.DataState{Set: "train", Rows: 5, Deal: long}},
		{State: &api.DataState{Set: "train", Rows: 5, Deal: "queue", Digest: []byte(long)}},
		{State: &api.DataState{Set: "train", Rows: 5, Deal: "queue", Draws: []*api.GroupDraws{{Rows: make([]uint64, 1e5)}}}},
	} {
		r.Job, r.Workers, r.Incarnation, r.Rows, r.Batch = "j", 1, "a", 5, 1
		if _, err := b.Open(r, nil); err == nil || len(err.Error()) > 500 {
			t.Errorf("error %.1000v", err)
		}
	}
}
