package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/rows"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// rowsSpec exchanges rows of an embedding, which is cut into chunks of 51 rows.
func rowsSpec(t *testing.T, provider, text string) Spec {
	t.Helper()
	of, err := rows.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s := momentumSpec(provider)
	s.Rows, s.ChunkBytes, s.Iters = of, 4096, 10
	return s
}

// Where all rows are touched, rows one by one must give what whole tensors give.
func TestTheReferenceOfAllRowsIsThatOfTheTensor(t *testing.T) {
	for _, optimizer := range []string{"sum", "sgd_torch", "adam_mxnet"} {
		s := rowsSpec(t, "auto", "rows=40,width=3,touch=100%")
		s.Optimizer, s.Hyper, s.Iters, s.Warmup = optimizer, nil, 3, 0
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		rule, h, err := s.optimizer()
		if err != nil {
			t.Fatal(err)
		}
		all, want := make([]int64, s.Rows.Rows), uint64(0)
		for i := range all {
			all[i] = int64(i)
		}
		for s.Iters = range 4 {
			if s.Iters > 0 {
				table := referenceTensor(&s, rule, rule.Rounded(h), 0)
				want = digestRows(want, all, func(i int, _ int64) []float32 { return table[3*i:][:3] })
			}
		}
		s.Iters = 3
		for r, got := range referenceRows(&s, rule, rule.Rounded(h)) {
			if got[0] != want {
				t.Errorf("%s: worker %d has other rows than the tensor's", optimizer, r)
			}
		}
	}
}

// A row that one worker touches has its gradient alone, and a row that nobody touches stays.
func TestTheReferenceSumsTheRanksThatTouchARow(t *testing.T) {
	s := rowsSpec(t, "auto", "rows=50,width=2,touch=4,zipf=1.1")
	s.Optimizer, s.Hyper, s.Iters, s.Warmup = "sum", nil, 1, 0
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	draws := s.Rows.Draws(s.Seed, 0, s.Workers)
	table := make([]float32, 100)
	for r := range draws { // the first sum begins at 0, which changes no bits but of -0
		grad := make([]float32, 8)
		Gradient(grad, s.Seed, r, 0, 0)
		for i, id := range draws[r][0] {
			optim.SumInto(table[2*id:2*id+2], [][]float32{grad[2*i : 2*i+2]}, true)
		}
	}
	got := referenceRows(&s, optim.Sum, optim.Hyper{})
	want := digestRows(0, touchedByAny(draws, 0), func(_ int, id int64) []float32 { return table[2*id:][:2] })
	if got[0][0] != want || got[2][0] != want {
		t.Error("the reference differs from adding each rank's rows to zeros")
	}
}

func TestAWorkerWithOtherRowsIsNamed(t *testing.T) {
	s := rowsSpec(t, "auto", "rows=50,width=3,touch=5")
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	want, err := reference(t.Context(), &s, nil)
	if err != nil {
		t.Fatal(err)
	}
	reports := make([]workerReport, s.Workers)
	for r := range reports {
		reports[r].Digests = slices.Clone(want[r])
	}
	reports[1].Digests[0]++
	var log strings.Builder
	var res report.Result
	if err := (&Runner{Log: &log}).verify(t.Context(), &s, reports, &res); err != nil {
		t.Fatal(err)
	}
	if res.Wrong != 150 || log.String() != "worker 1: tensor embedding is not plain Go's\n" {
		t.Errorf("%d wrong, %q", res.Wrong, log.String())
	}
}

func TestRowsEqualPlainGo(t *testing.T) {
	for _, tc := range []struct {
		name, provider, rows, optimizer string
		dtype                           chunk.DType
	}{
		{"sums", verbs.ProviderSHM, "rows=5000,width=20,touch=5%", "sum", chunk.F32},
		{"sums over tcp", verbs.ProviderTCP, "rows=5000,width=20,touch=5%,zipf=1.1", "sum", chunk.F32},
		{"momentum", verbs.ProviderSHM, "rows=5000,width=20,touch=5%,zipf=1.1,shuffle,placed", "sgd_torch", chunk.F32},
		{"momentum over tcp in bf16", verbs.ProviderTCP, "rows=5000,width=20,touch=1%", "sgd_torch", chunk.BF16},
		{"all rows", verbs.ProviderSHM, "rows=300,width=7,touch=100%", "adagrad_mxnet", chunk.F32},
		{"one row", verbs.ProviderSHM, "rows=3000,width=7,touch=1", "sgd_torch", chunk.F32},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := rowsSpec(t, tc.provider, tc.rows)
			s.Optimizer, s.DType = tc.optimizer, tc.dtype
			if tc.optimizer != "sgd_torch" {
				s.Hyper = nil
			}
			res := exchange(t, s)
			r := res.Rows
			if r == nil || r.Touched != s.Rows.Touch || r.Sent.Bytes < r.Sent.Least/2 || r.Received.Bytes == 0 || r.Busiest() < 1 {
				t.Errorf("rows %+v", r)
			}
		})
	}
}
