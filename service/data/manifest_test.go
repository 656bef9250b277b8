package data

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service/api"
)

const (
	inManifest = 60 // rows: 36 of group a, 18 of b and 6 of c
	shards     = 3
)

func groupOf(row uint64) int { return int(min(2, row%10/6+row%10/9)) }

// divide writes a manifest.
func divide(t testing.TB, path string, seed uint64) [32]byte {
	t.Helper()
	w, err := manifest.NewWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	for row := range uint64(inManifest) {
		if err := w.Add(groupOf(row)); err != nil {
			t.Fatal(err)
		}
	}
	h := manifest.Header{Input: "rows.csv", SHA256: fmt.Sprintf("%064d", 0), How: "stratified", Start: "rotate", Seed: seed,
		Workers: shards}
	if err := errors.Join(w.Finish(&h, []string{"a", "b", "c"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return m.Digest()
}

// take takes batches until the end of an epoch, and settles them.
func take(t testing.TB, s *Server, c *Caller, set string, seq *uint64, epoch uint64) (rows []uint64) {
	t.Helper()
	for {
		*seq++
		r, err := s.Next(c, &api.NextRowsRequest{Set: set, Seq: *seq, Epoch: epoch, Done: *seq - 1})
		if err != nil {
			t.Fatal(err)
		}
		if rows = append(rows, numbers(r.Rows)...); r.End {
			return rows
		}
	}
}

func newCaller(rank, workers int) *Caller {
	return &Caller{Key: JobName("j"), Job: "j", Rank: rank, Workers: workers, Incarnation: "a", Synchronous: true}
}

func TestSetsOfAManifestHaveItsRows(t *testing.T) {
	dir := t.TempDir()
	digest := divide(t, filepath.Join(dir, "m"), 1)
	for _, o := range []*api.OpenDataRequest{
		{Deal: dealQueue}, {Deal: dealFixed}, {Deal: dealShards}, {Deal: dealQueue, Plain: true}, {Deal: dealShards, Plain: true},
	} {
		t.Run(fmt.Sprint(o), func(t *testing.T) {
			s := NewServer(Config{Dir: dir})
			o.Manifest, o.Batch, o.Digest = "m", 5, digest[:]
			var all []uint64
			key := newCaller(0, shards).Key
			seqs := make([]uint64, shards)
			for rank := range shards {
				c := newCaller(rank, shards)
				c.Key = key
				opened, err := s.Open(c, o)
				if err != nil || opened.Rows != inManifest || !bytes.Equal(opened.Digest, digest[:]) || opened.Steps != 4 {
					t.Fatal(opened, err)
				}
			}
			for seq := uint64(1); seq <= 4; seq++ {
				var step []uint64
				for rank := range shards {
					c := newCaller(rank, shards)
					c.Key = key
					r, err := s.Next(c, &api.NextRowsRequest{Seq: seq, Done: seq - 1})
					if err != nil {
						t.Fatal(err)
					}
					seqs[rank]++
					step = append(step, numbers(r.Rows)...)
				}
				var of [3]int
				for _, row := range step {
					of[groupOf(row)]++
				}
				if !o.Plain && o.Deal != dealShards && (of[0] < 8 || of[0] > 10 || of[1] < 3 || of[1] > 6 || of[2] < 1 || of[2] > 2) {
					t.Errorf("a step has %d rows of the groups, which are 9 : 4.5 : 1.5", of)
				}
				all = append(all, step...)
			}
			slices.Sort(all)
			if all = slices.Compact(all); len(all) != inManifest {
				t.Errorf("the epoch has %d rows of %d", len(all), inManifest)
			}
		})
	}
}

func TestManifestsThatDoNotFitAreRefused(t *testing.T) {
	dir := t.TempDir()
	digest := divide(t, filepath.Join(dir, "m"), 1)
	other := divide(t, filepath.Join(dir, "other"), 2)
	if err := errors.Join(os.Symlink("m", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "folder"), 0o755),
		os.WriteFile(filepath.Join(dir, "torn"), []byte("PK"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]*api.OpenDataRequest{
		"the manifest of another input":      {Manifest: "m", Digest: other[:]},
		`manifest "link" is not a regular`:   {Manifest: "link"},
		`manifest "folder" is not a regular`: {Manifest: "folder"},
		"not a whole manifest":               {Manifest: "torn"},
		`manifest "none": no such file`:      {Manifest: "none"},
		`"../m": name a file`:                {Manifest: "../m"},
		`".": name a file`:                   {Manifest: "."},
		`"..": name a file`:                  {Manifest: ".."},
		`"/etc/passwd": name a file`:         {Manifest: "/etc/passwd"},
		"has 3 shards, the job 2 workers":    {Manifest: "m", Deal: dealShards},
		"draws 60 rows of 2 groups":          {Manifest: "m", State: drawing(digest, 60, 0)},
		"draws 61 rows of 3 groups":          {Manifest: "m", State: drawing(digest, 60, 0, 1)},
	} {
		s := NewServer(Config{Dir: dir})
		o.Batch = 5
		if _, err := s.Open(newCaller(0, 2), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func drawing(digest [32]byte, rows ...uint64) *api.DataState {
	return &api.DataState{Set: "train", Rows: inManifest, Digest: digest[:], Deal: dealQueue, Draws: []*api.GroupDraws{{Rows: rows}}}
}

// Losses change the draws of epochs that have not begun, and a state goes on with those.
func TestGroupsWithHighLossesComeMoreOften(t *testing.T) {
	dir := t.TempDir()
	divide(t, filepath.Join(dir, "m"), 1)
	c := newCaller(0, 1)
	o := &api.OpenDataRequest{Manifest: "m", Batch: 7, Favour: 1}
	s := NewServer(Config{Dir: dir})
	if _, err := s.Open(c, o); err != nil {
		t.Fatal(err)
	}
	counts := func(rows []uint64) (of [3]int) {
		for _, row := range rows {
			of[groupOf(row)]++
		}
		return of
	}
	if err := s.Losses(c.Key, []float64{1, 1}); err == nil {
		t.Error("two losses for three groups")
	}
	if _, err := s.Next(c, &api.NextRowsRequest{Seq: 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Losses(c.Key, []float64{1, 1, 9}); err != nil {
		t.Fatal(err)
	}
	seq := uint64(1)
	first := take(t, s, c, "", &seq, 0)
	state, err := s.State(c, &api.DataStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	second := take(t, s, c, "", &seq, 1)
	if a, b := counts(first), counts(second); a[2] > 6 || b[2] != 17 || len(second) != inManifest {
		t.Errorf("groups have %d rows in the epoch of the losses and %d in the next: want 6 and 17 of c", a, b)
	}
	s, o = NewServer(Config{Dir: dir}), proto.CloneOf(o)
	o.State = state.State
	opened, err := s.Open(c, o)
	if err != nil {
		t.Fatal(err)
	}
	seq = 0
	if opened.Epoch == 0 {
		take(t, s, c, "", &seq, 0)
	}
	if again := take(t, s, c, "", &seq, 1); !slices.Equal(again, second) {
		t.Errorf("from its state the epoch has rows %d, not %d", again, second)
	}
}

func TestBatchesFollowSpeedsAndKeepTheirSum(t *testing.T) {
	s := NewServer(Config{})
	workers := []*Caller{newCaller(0, 2), newCaller(1, 2)}
	workers[1].Key = workers[0].Key
	for _, c := range workers {
		if _, err := s.Open(c, &api.OpenDataRequest{Rows: 1e6, Batch: 60, Balance: true}); err != nil {
			t.Fatal(err)
		}
	}
	var last [2]int
	for seq := uint64(1); seq <= 100; seq++ {
		total, weight := 0, 0.0
		for rank, c := range workers {
			seconds := float64(last[rank]) * []float64{1e-3, 3e-3}[rank]
			r, err := s.Next(c, &api.NextRowsRequest{Seq: seq, Done: seq - 1, Seconds: seconds})
			if err != nil {
				t.Fatal(err)
			}
			last[rank] = len(r.Rows) / 8
			total, weight = total+last[rank], weight+r.Weight
		}
		if total != 120 || weight != 2 {
			t.Fatalf("step %d has batches %d of weights %v in all, want 120 rows and 2", seq, last, weight)
		}
	}
	// Ideal are 90 and 30 rows, which take 90 ms.
	if longest := max(float64(last[0]), 3*float64(last[1])); longest > 1.1*90 {
		t.Errorf("batches %d take %v ms, want at most 1.1 of 90", last, longest)
	}
}

// BenchmarkManyGroups measures calls of workers in turn, whose orders have many groups.
func BenchmarkManyGroups(b *testing.B) {
	const rows, groups, workers = 200_000, 2000, 16
	dir := b.TempDir()
	w, err := manifest.NewWriter(filepath.Join(dir, "m"))
	if err != nil {
		b.Fatal(err)
	}
	for row := range rows {
		if err := w.Add(row % groups); err != nil {
			b.Fatal(err)
		}
	}
	names := make([]string, groups)
	for g := range names {
		names[g] = fmt.Sprint(g)
	}
	h := manifest.Header{Input: "x", SHA256: fmt.Sprintf("%064d", 0), How: "stratified", Start: "rotate", Workers: workers}
	if err := errors.Join(w.Finish(&h, names), w.Close()); err != nil {
		b.Fatal(err)
	}
	for _, how := range []string{dealQueue, dealFixed, dealShards} {
		b.Run(how, func(b *testing.B) {
			s, calls := NewServer(Config{Dir: dir}), uint64(0)
			for rank := range workers {
				if _, err := s.Open(newCaller(rank, workers), &api.OpenDataRequest{Manifest: "m", Deal: how, Batch: 8}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				seq, rank := 1+calls/workers, int(calls*7%workers) // not in the order of ranks
				if _, err := s.Next(newCaller(rank, workers), &api.NextRowsRequest{Seq: seq, Done: seq - 1}); err != nil {
					b.Fatal(err)
				}
				calls++
			}
		})
	}
}
