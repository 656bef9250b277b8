package client_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

func TestOperationsOnRowsAreRefusedByTheParametersName(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	w := joinAll(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderSHM, Mode: "eager", Optimizer: "sgd_torch"})[0]
	tensors := []client.Tensor{{Name: "embedding", Shape: []uint64{10, 4}, Sparse: true}, {Name: "bias", Shape: []uint64{10}}}
	if err := w.Register(bounded(t), tensors); err != nil {
		t.Fatal(err)
	}
	row, table := make([]byte, 16), make([]byte, 160)
	two := make([]byte, 32)
	for _, tc := range []struct {
		op   client.Op
		what string
	}{
		{client.Op{Kind: client.Push, Src: row, Rows: []int64{10}}, `push "embedding": submit: tensor 0: id 0 is 10: use rows from 0 to 9`},
		{client.Op{Kind: client.Push, Src: two, Rows: []int64{3, 3}}, `push "embedding": submit: tensor 0: id 1 is 3, not above 3`},
		{client.Op{Kind: client.Pull, Dst: two, Rows: []int64{3, -3}}, `pull "embedding": submit: tensor 0: id 1 is -3`},
		{client.Op{Kind: client.Push, Src: row, Rows: []int64{1, 2}}, `push "embedding": source of 16 bytes: it takes 32`},
		{client.Op{Kind: client.Pull, Dst: table, Rows: []int64{1, 2}}, `pull "embedding": destination of 160 bytes: it takes 32`},
		{client.Op{Kind: client.PushPull, Src: row, Dst: row, Rows: []int64{1}},
			`pushpull "embedding": destination of 16 bytes: it takes 160`},
		{client.Op{Kind: client.PushPull, Src: table[16:32], Dst: table, Rows: []int64{3}},
			`pushpull "embedding": submit: tensor 0: its 1 rows lie in the destination: give them memory of their own`},
		{client.Op{Kind: client.Push, Src: row}, `push "embedding": source of 16 bytes: it takes 160`},
		{client.Op{Kind: client.Push, Tensor: 1, Src: row, Rows: []int64{1}}, `push "bias": 1 rows are given`},
		{client.Op{Kind: client.Broadcast, Src: table, Dst: table, Rows: []int64{1}}, `broadcast "embedding": 1 rows are given`},
		{client.Op{Kind: client.Push, Src: row, Rows: []int64{1}, Union: new(client.Union)}, `push "embedding": it has no union`},
	} {
		if _, err := w.Submit(tc.op); err == nil || !strings.Contains(err.Error(), tc.what) {
			t.Errorf("%v, expected %s", err, tc.what)
		}
	}
}

func TestSumRowsLeavesEachRowOnce(t *testing.T) {
	ids, rows := []int64{7, 2, 7, 2, 7}, []float32{1, 10, 2, 20, 3, 30, 4, 40, 5, 50}
	n, err := client.SumRows(ids, client.Bytes(rows), 2, chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ids[:n], []int64{2, 7}) || !slices.Equal(rows[:2*n], []float32{6, 60, 9, 90}) {
		t.Errorf("%v, %v", ids[:n], rows[:2*n])
	}
	for what, call := range map[string]func() (int, error){
		"40 bytes for 5 rows of 1 elements": func() (int, error) { return client.SumRows(ids, client.Bytes(rows), 1, chunk.F32) },
		"id 0 is -1":                        func() (int, error) { return client.SumRows([]int64{-1}, make([]byte, 2), 1, chunk.F16) },
	} {
		if _, err := call(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, expected %q", err, what)
		}
	}
}
