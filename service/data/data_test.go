package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
)

// numbers reads an answer's rows.
func numbers(b []byte) (rows []uint64) {
	for ; len(b) > 0; b = b[8:] {
		rows = append(rows, binary.LittleEndian.Uint64(b))
	}
	return rows
}

// ask makes a call of Next with a session.
func ask(b *Beside, session string, r *api.NextRowsRequest) (*api.NextRowsResponse, error) {
	c, err := b.Caller(session, nil)
	if err != nil {
		return nil, err
	}
	return b.Next(c, r)
}

// run is a job whose workers and service die, and what of each epoch's rows they have applied.
type run struct {
	t       *rapid.T
	path    string
	b       *Beside
	open    *api.OpenDataRequest
	workers []trainee
	applied map[[2]uint64]int // by epoch and row
}

type trainee struct {
	session   string
	runs      int
	seq, done uint64
	epoch     uint64
	ended     bool
	held      []batch
}

type batch struct {
	seq, epoch uint64
	rows       []uint64
}

const testTimeout = time.Minute

func newRun(t *rapid.T, dir string, open *api.OpenDataRequest) *run {
	f, err := os.CreateTemp(dir, "journal")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	r := &run{t: t, path: f.Name(), open: open, applied: map[[2]uint64]int{}, workers: make([]trainee, open.Workers)}
	r.serve()
	for rank := range r.workers {
		r.begin(rank)
	}
	return r
}

// serve starts the service on the journal.
func (r *run) serve() {
	b, err := NewBeside("", testTimeout, r.path, 1<<30, "")
	if err != nil {
		r.t.Fatal(err)
	}
	r.b = b
}

// kill ends the service, which may have been writing a line.
func (r *run) kill(torn string) {
	r.b.Close()
	f, err := os.OpenFile(r.path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(torn)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		r.t.Fatal(err)
	}
	r.serve()
}

// begin starts another run of a worker.
func (r *run) begin(rank int) {
	w := &r.workers[rank]
	w.runs++
	o := proto.CloneOf(r.open)
	o.Rank, o.Incarnation = uint32(rank), fmt.Sprint("run ", w.runs)
	for i := range 2 { // asks twice
		opened, err := r.b.Open(o, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		if i > 0 && opened.Session != w.session {
			r.t.Fatalf("asked twice, worker %d got sessions %s and %s", rank, w.session, opened.Session)
		}
		*w = trainee{session: opened.Session, runs: w.runs, epoch: opened.Epoch}
	}
}

// next takes a batch, twice. It reports false if the worker must open the set again.
func (r *run) next(rank int) bool {
	w := &r.workers[rank]
	call := &api.NextRowsRequest{Seq: w.seq + 1, Epoch: w.epoch, Done: w.done}
	a, err := ask(r.b, w.session, call)
	if errors.Is(err, ErrReopen) {
		return false
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if b, err := ask(r.b, w.session, call); err != nil || !proto.Equal(a, b) {
		r.t.Fatalf("repeated: %v, not %v (%v)", b, a, err)
	}
	w.seq++
	w.held = append(w.held, batch{w.seq, w.epoch, numbers(a.Rows)})
	w.ended = a.End
	return true
}

// apply settles a worker's batches up to a number.
func (r *run) apply(rank int, upTo uint64) {
	w := &r.workers[rank]
	_, err := ask(r.b, w.session, &api.NextRowsRequest{Done: upTo})
	if errors.Is(err, ErrReopen) {
		return
	}
	if err != nil {
		r.t.Fatal(err)
	}
	w.done = max(w.done, upTo)
	r.count(rank, upTo)
}

func (r *run) count(rank int, upTo uint64) {
	w := &r.workers[rank]
	w.held = slices.DeleteFunc(w.held, func(b batch) bool {
		for _, row := range b.rows {
			if b.seq <= upTo {
				r.applied[[2]uint64{b.epoch, row}]++
			}
		}
		return b.seq <= upTo
	})
}

func (r *run) once(epochs uint64) {
	for e := range epochs {
		for row := range r.open.Rows {
			if n := r.applied[[2]uint64{e, row}]; n != 1 {
				r.t.Fatalf("row %d of epoch %d was applied %d times", row, e, n)
			}
		}
	}
}

func TestEachRowIsAppliedOnceWhateverDies(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		const epochs = 2
		r := newRun(t, dir, &api.OpenDataRequest{Job: "j", Rows: rapid.Uint64Range(1, 40).Draw(t, "rows"), Seed: 3, Asynchronous: true,
			Workers: rapid.Uint32Range(1, 4).Draw(t, "workers"), Batch: rapid.Uint32Range(1, 6).Draw(t, "batch")})
		defer func() { r.b.Close() }()
		for range rapid.IntRange(0, 100).Draw(t, "events") {
			rank := rapid.IntRange(0, len(r.workers)-1).Draw(t, "worker")
			w := &r.workers[rank]
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				r.begin(rank)
			case 1:
				r.kill(rapid.SampledFrom([]string{"", "{", `{"op":"next","session":"`}).Draw(t, "torn"))
			case 2: // does not call
				r.b.sessions[w.session].heard = time.Now().Add(-testTimeout - time.Second)
				r.b.Tend()
			case 3, 4, 5:
				if w.seq > 0 {
					r.apply(rank, rapid.Uint64Range(1, w.seq).Draw(t, "done"))
				}
			default:
				if w.ended && w.epoch+1 < epochs {
					w.epoch, w.ended = w.epoch+1, false
				}
				if !r.next(rank) {
					r.begin(rank)
				}
			}
		}
		for over := 0; over < len(r.workers); {
			over = 0
			for rank := range r.workers {
				w := &r.workers[rank]
				r.apply(rank, w.seq)
				switch {
				case !w.ended:
					if !r.next(rank) {
						r.begin(rank)
					}
				case w.epoch+1 < epochs:
					w.epoch, w.ended = w.epoch+1, false
				default:
					over++
				}
			}
		}
		r.once(epochs)
	})
}

// Synchronous workers make steps together. When one dies the job goes on from the last step that was reported.
func TestEachRowIsAppliedOnceInStepsWhateverDies(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		const epochs = 2
		r := newRun(t, dir, &api.OpenDataRequest{Job: "j", Rows: rapid.Uint64Range(1, 40).Draw(t, "rows"), Seed: 3,
			Workers: rapid.Uint32Range(1, 4).Draw(t, "workers"), Batch: rapid.Uint32Range(1, 6).Draw(t, "batch"),
			Deal: rapid.SampledFrom([]string{dealQueue, dealFixed}).Draw(t, "deal")})
		defer func() { r.b.Close() }()
		again := func(first int) {
			r.begin(first)
			for rank := range r.workers {
				if rank == first {
					continue
				}
				if r.workers[rank].seq > 0 && r.workers[first].runs > 1 && r.next(rank) {
					t.Fatalf("worker %d goes on when worker %d has begun again", rank, first)
				}
				r.begin(rank)
			}
		}
		for step := uint64(1); r.workers[0].epoch < epochs; step++ {
			for rank := range r.workers { // some ahead of the step
				w := &r.workers[rank]
				ahead := step + rapid.Uint64Range(0, 2).Draw(t, "ahead")
				for w.seq < step || w.seq < ahead && !w.ended {
					if !r.next(rank) {
						t.Fatal("the set must be opened again, and nobody has died")
					}
				}
			}
			if r.workers[0].seq == step && r.workers[0].ended {
				for rank := range r.workers {
					w := &r.workers[rank]
					if w.seq != step || !w.ended {
						t.Fatalf("worker %d is in batch %d of epoch %d, and worker 0 at its end", rank, w.seq, w.epoch)
					}
					w.epoch, w.ended = w.epoch+1, false
				}
				continue
			}
			if rapid.IntRange(0, 3).Draw(t, "kill") == 0 {
				r.kill("{")
			}
			if begun := rapid.IntRange(0, 6).Draw(t, "die") == 0; begun {
				again(rapid.IntRange(0, len(r.workers)-1).Draw(t, "dies"))
				step = 0
				continue
			}
			r.apply(rapid.IntRange(0, len(r.workers)-1).Draw(t, "reports"), step)
			for rank := range r.workers {
				r.count(rank, step)
			}
		}
		r.once(epochs)
	})
}

// alone opens a set for its only worker.
func alone(t testing.TB, b *Beside, o *api.OpenDataRequest) *api.OpenDataResponse {
	t.Helper()
	o = proto.CloneOf(o)
	o.Job, o.Workers, o.Incarnation = "j", 1, fmt.Sprint(time.Now().UnixNano())
	opened, err := b.Open(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

func beside(t testing.TB, path string) *Beside {
	t.Helper()
	b, err := NewBeside("", testTimeout, path, 1<<30, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestAStateGoesOnAsIfNothingHadHappened(t *testing.T) {
	for _, o := range []*api.OpenDataRequest{
		{Rows: 100, Batch: 7}, {Rows: 100, Batch: 7, Deal: dealFixed}, {Rows: 100, Batch: 7, Asynchronous: true},
	} {
		whole, b := []string{}, beside(t, "")
		s := alone(t, b, o)
		var states []*api.DataState
		for seq, epoch := uint64(1), uint64(0); epoch < 2; seq++ {
			c, err := b.Caller(s.Session, nil)
			if err != nil {
				t.Fatal(err)
			}
			state, err := b.State(c, &api.DataStateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			r, err := ask(b, s.Session, &api.NextRowsRequest{Seq: seq, Epoch: epoch})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ask(b, s.Session, &api.NextRowsRequest{Done: seq}); err != nil {
				t.Fatal(err)
			}
			if r.End {
				epoch++
				continue
			}
			states, whole = append(states, state.State), append(whole, fmt.Sprint(epoch, numbers(r.Rows)))
		}
		for i, state := range states {
			b, from := beside(t, ""), proto.CloneOf(o)
			from.State = state
			s, rest := alone(t, b, from), []string{}
			for seq, epoch := uint64(1), s.Epoch; epoch < 2; seq++ {
				r, err := ask(b, s.Session, &api.NextRowsRequest{Seq: seq, Epoch: epoch, Done: seq - 1})
				if err != nil {
					t.Fatal(err)
				}
				if r.End {
					epoch++
					continue
				}
				rest = append(rest, fmt.Sprint(epoch, numbers(r.Rows)))
			}
			if !slices.Equal(rest, whole[i:]) {
				t.Errorf("%v: after batch %d: %v, want %v", o, i, rest, whole[i:])
			}
		}
	}
}

func TestTermsMustAgree(t *testing.T) {
	b := beside(t, "")
	o := &api.OpenDataRequest{Job: "j", Rows: 10, Batch: 2, Seed: 1, Workers: 2, Incarnation: "a"}
	if _, err := b.Open(o, nil); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*api.OpenDataRequest){
		"worker 1 opens it with seed 2, and worker 0 has opened it with 1": func(o *api.OpenDataRequest) { o.Seed = 2 },
		"with rows 11,":                func(o *api.OpenDataRequest) { o.Rows = 11 },
		"with batch 3,":                func(o *api.OpenDataRequest) { o.Batch = 3 },
		"with deal fixed,":             func(o *api.OpenDataRequest) { o.Deal = "fixed" },
		"with plain true,":             func(o *api.OpenDataRequest) { o.Plain = true },
		"with balance true,":           func(o *api.OpenDataRequest) { o.Balance = true },
		"with workers 3,":              func(o *api.OpenDataRequest) { o.Workers = 3 },
		"with asynchronous true,":      func(o *api.OpenDataRequest) { o.Asynchronous = true },
		"rank 2 of 2 workers":          func(o *api.OpenDataRequest) { o.Rank = 2 },
		"rank 1 of 0 workers":          func(o *api.OpenDataRequest) { o.Workers = 0 },
		"an incarnation of 0 bytes":    func(o *api.OpenDataRequest) { o.Incarnation = "" },
		`job name "":`:                 func(o *api.OpenDataRequest) { o.Job = "" },
		"favour 1: a service beside":   func(o *api.OpenDataRequest) { o.Favour = 1 },
		"no folder of manifests":       func(o *api.OpenDataRequest) { o.Rows, o.Manifest, o.Set = 0, "m", "other" },
		"state to go on from has rows": func(o *api.OpenDataRequest) { o.Set, o.State = "other", &api.DataState{Set: "other", Rows: 5} },
	} {
		other := proto.CloneOf(o)
		other.Rank = 1
		change(other)
		if _, err := b.Open(other, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWorkersSettleOnlyWhatTheyHold(t *testing.T) {
	b := beside(t, "")
	s := alone(t, b, &api.OpenDataRequest{Rows: 10, Batch: 2}).Session
	for _, c := range []struct {
		session string
		r       *api.NextRowsRequest
		want    error
	}{
		{s, &api.NextRowsRequest{Done: 1}, deal.ErrNotHeld},
		{s, &api.NextRowsRequest{Seq: 2}, deal.ErrSequence},
		{s, &api.NextRowsRequest{Seq: 1, Epoch: 1}, deal.ErrEpoch},
		{s, &api.NextRowsRequest{Seq: 1, Set: "other"}, ErrUnknown},
		{"nobody", &api.NextRowsRequest{Seq: 1}, ErrReopen},
	} {
		if _, err := ask(b, c.session, c.r); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.r, err, c.want)
		}
	}
}

// A set that all workers have left may be opened with other terms, but goes on only in the same order of the same rows.
func TestJobsThatBeginAgainMayChangeTheirWorkers(t *testing.T) {
	b := beside(t, "")
	o := &api.OpenDataRequest{Job: "j", Rows: 10, Batch: 4, Workers: 1, Incarnation: "a"}
	s, err := b.Open(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := ask(b, s.Session, &api.NextRowsRequest{Seq: 1})
	if err == nil {
		_, err = ask(b, s.Session, &api.NextRowsRequest{Done: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	o.Workers, o.Batch = 2, 3
	got := numbers(first.Rows)
	for rank := range uint32(2) {
		o.Rank, o.Incarnation = rank, "b"
		s, err := b.Open(o, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ask(b, s.Session, &api.NextRowsRequest{Seq: 1})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, numbers(r.Rows)...)
	}
	slices.Sort(got)
	if len(slices.Compact(got)) != 10 {
		t.Errorf("rows %d, want each once", got)
	}
}

func TestJournalsThatAreDamagedAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	b := beside(t, path)
	s := alone(t, b, &api.OpenDataRequest{Rows: 10, Batch: 2}).Session
	if _, err := ask(b, s, &api.NextRowsRequest{Seq: 1}); err != nil {
		t.Fatal(err)
	}
	_, err := NewBeside("", testTimeout, path, 1<<30, "")
	if err == nil || !strings.Contains(err.Error(), "another service writes it: end that one") ||
		strings.Contains(err.Error(), "unavailable") {
		t.Errorf("two services with a journal: %v", err)
	}
	_, err = NewBeside("", testTimeout, filepath.Join(path, "..", "none", "journal"), 1<<30, "")
	if err == nil || !strings.Contains(err.Error(), "none/journal: its folder is missing: make it first") {
		t.Errorf("a journal in a folder that is missing: %v", err)
	}
	b.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string][]byte{
		"line 1: invalid character":      []byte("rows\n"),
		"line 2: unexpected EOF":         bytes.Replace(whole, []byte(`"seq":1`), []byte("\n"), 1),
		"line 1: \"next\" of session":    whole[bytes.IndexByte(whole, '\n')+1:],
		"batch 1 has 2 rows, and had 3:": bytes.Replace(whole, []byte(`"rows":2`), []byte(`"rows":3`), 1),
		"call 2: out of sequence":        bytes.Replace(whole, []byte(`"seq":1`), []byte(`"seq":2`), 1),
		"line 3: \"open\" of session":    append(slices.Clone(whole), `{"op":"open"}`+"\n"...),
		`unknown field "colour"`:         []byte(`{"op":"open","colour":3}` + "\n"),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := NewBeside("", testTimeout, path, 1<<30, "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
			b.Close()
		}
	}
}

func TestAFullJournalDealsNothing(t *testing.T) {
	b, err := NewBeside("", testTimeout, filepath.Join(t.TempDir(), "journal"), 200, "")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := alone(t, b, &api.OpenDataRequest{Rows: 10, Batch: 2}).Session
	for seq := uint64(1); err == nil; seq++ {
		_, err = ask(b, s, &api.NextRowsRequest{Seq: seq})
	}
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "raise --journal-bytes") {
		t.Error(err)
	}
}

func TestAJournalThatCannotBeWrittenDealsNothing(t *testing.T) {
	b := beside(t, filepath.Join(t.TempDir(), "journal"))
	s := alone(t, b, &api.OpenDataRequest{Rows: 10, Batch: 2}).Session
	b.journal.file.Close()
	for range 2 {
		if _, err := ask(b, s, &api.NextRowsRequest{Seq: 1}); !errors.Is(err, ErrJournal) {
			t.Error(err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	path := filepath.Join(f.TempDir(), "journal")
	b := beside(f, path)
	s := alone(f, b, &api.OpenDataRequest{Rows: 10, Batch: 2}).Session
	for seq := uint64(1); seq < 4; seq++ {
		if _, err := ask(b, s, &api.NextRowsRequest{Seq: seq, Done: seq - 1}); err != nil {
			f.Fatal(err)
		}
	}
	b.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		b := &Beside{Server: NewServer(Config{}), sessions: map[string]*opened{}}
		size, err := redoAll(bytes.NewReader(text), b.redo)
		if whole := int64(bytes.LastIndexByte(text, '\n') + 1); size > whole || err == nil && size < whole {
			t.Errorf("%d bytes of %d (%v)", size, whole, err)
		}
	})
}
