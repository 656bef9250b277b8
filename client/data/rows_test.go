package data_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/client/data"
	"github.com/rackweave/rackweave/client/membership"
	rows "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dealing is a service whose order of rows is their number.
type dealing struct {
	apiconnect.UnimplementedDataServiceHandler
	mu          sync.Mutex
	ledger      *rows.Ledger
	workers     int
	total       uint64
	synchronous bool
	batch       []uint64
	done        []uint64 // by rank, as far as the ledger knows
	seconds     []float64
	raw         func([]byte) []byte // what becomes of the row numbers of an answer; may be nil
	opened      *api.OpenDataRequest
}

func (d *dealing) Open(_ context.Context, q *api.OpenDataRequest) (*api.OpenDataResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ledger == nil {
		d.workers, d.total, d.synchronous = int(q.Workers), q.Rows, !q.Asynchronous
		s := rows.State{}
		if q.State != nil {
			s.Epoch, s.Cursor = q.State.Epoch, q.State.Cursor
			for _, r := range q.State.Returned {
				s.Returned = append(s.Returned, rows.Range{Epoch: r.Epoch, From: r.From, To: r.To})
			}
		}
		var err error
		if d.ledger, err = rows.NewLedger(d.total, d.workers, d.synchronous, s); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		d.batch, d.done, d.seconds = make([]uint64, d.workers), make([]uint64, d.workers), make([]float64, d.workers)
	}
	d.ledger.Lose(int(q.Rank))
	d.batch[q.Rank], d.done[q.Rank], d.opened = uint64(q.Batch), 0, q
	s, err := d.ledger.State()
	return &api.OpenDataResponse{
		Session: fmt.Sprint(q.Rank), Rows: d.total, Epoch: s.Epoch, Synchronous: d.synchronous, Rank: q.Rank, Workers: q.Workers,
	}, err
}

// rank returns whose call it is.
func rank(ctx context.Context) (r int) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	_, _ = fmt.Sscan(info.RequestHeader().Get(api.SessionHeader), &r)
	return r
}

func (d *dealing) Next(ctx context.Context, q *api.NextRowsRequest) (*api.NextRowsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := rank(ctx)
	for ; d.done[w] < q.Done; d.done[w]++ {
		if err := d.ledger.Done(w, d.done[w]+1); err != nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, err)
		}
		d.seconds[w] = q.Seconds
	}
	if q.Seq == 0 {
		return &api.NextRowsResponse{}, nil
	}
	l, err := d.ledger.Next(w, q.Seq, q.Epoch, d.batch[w])
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	a := &api.NextRowsResponse{End: l.End}
	for _, r := range l.Ranges {
		for at := r.From; at < r.To; at++ {
			a.Rows = binary.LittleEndian.AppendUint64(a.Rows, at)
			a.Weight = 1
		}
	}
	if d.raw != nil {
		a.Rows = d.raw(a.Rows)
	}
	return a, nil
}

func (d *dealing) State(context.Context, *api.DataStateRequest) (*api.DataStateResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.ledger.State()
	out := &api.DataState{Rows: d.total, Epoch: s.Epoch, Cursor: s.Cursor}
	for _, r := range s.Returned {
		out.Returned = append(out.Returned, &api.RowRange{Epoch: r.Epoch, From: r.From, To: r.To})
	}
	return &api.DataStateResponse{State: out}, err
}

// serve runs a service, of whose calls faulty makes some break.
func serve(t *testing.T, d apiconnect.DataServiceHandler, faulty func(http.Handler) http.Handler) membership.Access {
	t.Helper()
	_, h := apiconnect.NewDataServiceHandler(d)
	if faulty != nil {
		h = faulty(h)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ErrorLog = nil
	s.Start()
	t.Cleanup(s.Close)
	return membership.Access{Server: s.URL, Timeout: 20 * time.Second}
}

// dropping loses one answer of so many, after the service has dealt or before.
func dropping(of int) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/Open") || rand.IntN(of) > 0 {
				h.ServeHTTP(w, r)
				return
			}
			if rand.IntN(2) == 0 {
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			panic(http.ErrAbortHandler)
		})
	}
}

func dial(t testing.TB, a membership.Access, o data.Options) *data.Rows {
	t.Helper()
	r, err := data.Dial(t.Context(), a, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// train takes and applies an epoch's batches, after so many that stay in hand.
func train(ctx context.Context, r *data.Rows, inHand int) (all []uint64, err error) {
	for held := 0; ; {
		b, err := r.Next(ctx)
		if err != nil || b.End {
			return all, err
		}
		all = append(all, b.Rows...)
		if held++; held > inHand {
			if err := r.Done(); err != nil {
				return all, err
			}
			held--
		}
	}
}

func TestEachRowOfAnEpochComesOnceThoughCallsBreak(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, total := rapid.IntRange(1, 4).Draw(rt, "workers"), rapid.Uint64Range(1, 60).Draw(rt, "rows")
		asynchronous := rapid.Bool().Draw(rt, "asynchronous")
		a := serve(t, &dealing{}, dropping(rapid.IntRange(3, 9).Draw(rt, "of")))
		const epochs = 2
		got, readers := make([][epochs][]uint64, n), make([]*data.Rows, n)
		for rank := range n {
			o := data.Options{
				Rows: total, Batch: rapid.IntRange(1, 20).Draw(rt, "batch"), Ahead: rapid.IntRange(1, 5).Draw(rt, "ahead"), Rank: rank,
				Workers: n, Asynchronous: asynchronous,
			}
			readers[rank] = dial(t, a, o)
		}
		var work sync.WaitGroup
		for rank, r := range readers {
			work.Go(func() {
				for epoch := range epochs {
					var err error
					if got[rank][epoch], err = train(t.Context(), r, 0); err != nil {
						t.Error(err)
					}
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		for epoch := range epochs {
			var all []uint64
			for rank := range n {
				all = append(all, got[rank][epoch]...)
			}
			slices.Sort(all)
			if want := sequence(total); !slices.Equal(all, want) {
				rt.Fatalf("epoch %d has rows %v, not 0 to %d", epoch, all, total-1)
			}
		}
	})
}

func sequence(n uint64) (all []uint64) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestRowsThatALostWorkerHeldComeToOthers(t *testing.T) {
	a := serve(t, &dealing{}, nil)
	o := data.Options{Rows: 60, Batch: 5, Ahead: 3, Workers: 2, Asynchronous: true, Rank: 1}
	lost, other := dial(t, a, o), o
	var first []uint64
	for i := range 2 {
		b, err := lost.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = b.Rows
			if err := errors.Join(lost.Done(), lost.Flush(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	}
	other.Rank = 0
	r := dial(t, a, other)
	again := dial(t, a, o) // the next incarnation of the worker
	var all [2][]uint64
	var work sync.WaitGroup
	for i, r := range []*data.Rows{r, again} {
		work.Go(func() {
			var err error
			if all[i], err = train(t.Context(), r, 0); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	got := slices.Concat(first, all[0], all[1])
	slices.Sort(got)
	if !slices.Equal(got, sequence(60)) {
		t.Errorf("trained on %v", got)
	}
}

func TestAStateHasTheRowsThatAreDone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := data.Options{
			Rows: rapid.Uint64Range(1, 100).Draw(rt, "rows"), Batch: rapid.IntRange(1, 9).Draw(rt, "batch"), Workers: 1,
			Ahead: rapid.IntRange(1, 4).Draw(rt, "ahead"), Asynchronous: rapid.Bool().Draw(rt, "asynchronous"),
		}
		r := dial(t, serve(t, &dealing{}, nil), o)
		var got []uint64
		for range rapid.IntRange(0, int(o.Rows)/o.Batch).Draw(rt, "steps") {
			b, err := r.Next(t.Context())
			if err != nil || b.End {
				rt.Fatal(b, err)
			}
			got = append(got, b.Rows...)
			if err := r.Done(); err != nil {
				rt.Fatal(err)
			}
		}
		var err error
		if o.State, err = r.State(t.Context()); err != nil {
			rt.Fatal(err)
		}
		rest, err := train(t.Context(), dial(t, serve(t, &dealing{}, nil), o), 0)
		if got = append(got, rest...); err != nil || !slices.Equal(got, sequence(o.Rows)) {
			rt.Fatalf("%v and %v: %v", o.State, rest, err)
		}
	})
}

func TestAnEpochThatWaitsForBatchesInHandTimesOut(t *testing.T) {
	r := dial(t, serve(t, &dealing{}, nil), data.Options{Rows: 6, Batch: 5, Workers: 1, Asynchronous: true})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := train(ctx, r, 1)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 batches of this worker are not done") {
		t.Errorf("error %v", err)
	}
	if err := r.Done(); err != nil {
		t.Fatal(err)
	}
	if b, err := r.Next(t.Context()); err != nil || !b.End {
		t.Errorf("after all are done: %v, %v", b, err)
	}
	if err := r.Done(); err == nil || !strings.Contains(err.Error(), "none is in hand") {
		t.Errorf("done without a batch: %v", err)
	}
}

func TestSecondsEndWhereTheGradientIsComputed(t *testing.T) {
	d := &dealing{}
	r := dial(t, serve(t, d, nil), data.Options{Rows: 6, Batch: 3, Workers: 1, Balance: true})
	for range 2 {
		before := time.Now()
		if _, err := r.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Computed()
		most := time.Since(before).Seconds()
		time.Sleep(20 * time.Millisecond)
		if err := errors.Join(r.Done(), r.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		if d.mu.Lock(); d.seconds[0] <= 0 || d.seconds[0] > most {
			t.Errorf("%v s reported, at most %v passed", d.seconds[0], most)
		}
		d.mu.Unlock()
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	a := serve(t, &dealing{}, nil)
	for want, change := range map[string]func(*data.Options){
		"a batch of 0 rows":   func(o *data.Options) { o.Batch = 0 },
		"257 batches ahead":   func(o *data.Options) { o.Ahead = 257 },
		"-1 batches ahead":    func(o *data.Options) { o.Ahead = -1 },
		"rank -1 of 1 worker": func(o *data.Options) { o.Rank = -1 },
		"favour of NaN":       func(o *data.Options) { o.Favour = math.NaN() },
		"favour of -1":        func(o *data.Options) { o.Favour = -1 },
		"favour of +Inf":      func(o *data.Options) { o.Favour = math.Inf(1) },
		"0 rows: use 1":       func(o *data.Options) { o.Rows = 0 },
	} {
		o := data.Options{Rows: 9, Batch: 1, Workers: 1}
		change(&o)
		r, err := data.Dial(t.Context(), a, o)
		if r != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "use ") ||
			!strings.Contains(err.Error(), `"train"`) {
			t.Errorf("%q: error %v", want, err)
		}
	}
}

func TestWrongAnswersAreErrors(t *testing.T) {
	for want, raw := range map[string]func([]byte) []byte{
		"7 bytes":    func(b []byte) []byte { return b[:7] },
		"row 9 of 9": func([]byte) []byte { return []byte{9, 0, 0, 0, 0, 0, 0, 0} },
	} {
		r := dial(t, serve(t, &dealing{raw: raw}, nil), data.Options{Rows: 9, Batch: 2, Workers: 1})
		for range 2 { // it stays
			if _, err := r.Next(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %v", want, err)
			}
		}
	}
}

func TestAServiceThatIsLostIsAnErrorInTime(t *testing.T) {
	var gone atomic.Bool
	a := serve(t, &dealing{}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if gone.Load() {
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	})
	a.Timeout = 300 * time.Millisecond
	r := dial(t, a, data.Options{Rows: 100, Batch: 1, Workers: 1})
	gone.Store(true)
	for range 200 {
		if _, err := r.Next(t.Context()); err != nil {
			if !errors.Is(err, membership.ErrServerLost) {
				t.Errorf("error %v", err)
			}
			return
		}
		if err := r.Done(); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("no call broke")
}

func TestARefusalIsNotRepeated(t *testing.T) {
	a := serve(t, apiconnect.UnimplementedDataServiceHandler{}, nil)
	before := time.Now()
	_, err := data.Dial(t.Context(), a, data.Options{Rows: 1, Batch: 1, Workers: 1})
	if !errors.Is(err, membership.ErrRefused) || time.Since(before) > a.Timeout/2 {
		t.Errorf("error %v", err)
	}
}
