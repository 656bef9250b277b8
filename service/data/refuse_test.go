package data

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		if _, err := b.Next(open.Session, &api.NextRowsRequest{Seq: seq}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Next(open.Session, &api.NextRowsRequest{Seq: deal.MaxLeases + 1}, nil); !errors.Is(err, deal.ErrSequence) {
		t.Errorf("leases without bound: %v", err)
	}
	for i, seconds := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		r := &api.NextRowsRequest{Done: uint64(1 + i), Seconds: seconds}
		if _, err := b.Next(open.Session, r, nil); err == nil || !strings.Contains(err.Error(), "use a finite number") {
			t.Errorf("%v seconds: %v", seconds, err)
		}
	}
	if _, err := b.Next(open.Session, &api.NextRowsRequest{Done: 1, Seconds: 1}, nil); err != nil {
		t.Error(err)
	}
	b.Close()
	b = serveBeside(t, dir)
	if _, err := b.Next(open.Session, &api.NextRowsRequest{Seq: deal.MaxLeases + 1}, nil); err != nil {
		t.Error(err)
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
	for range 100 {
		if _, err := b.Open(&api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Manifest: "m", Batch: 1}, nil); err == nil {
			t.Fatal("a manifest that is not there")
		}
	}
	if n := len(b.Server.jobs); n != 0 {
		t.Errorf("%d jobs are left", n)
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
	if r, err := b.Next(open.Session, &api.NextRowsRequest{Seq: 1}, nil); err != nil || len(r.Rows) != 5*8 {
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
