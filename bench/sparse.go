package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/rows"
	"github.com/rackweave/rackweave/client"
)

// Sparse reports whether workers exchange rows.
func (s *Spec) Sparse() bool { return s.Rows.Rows > 0 }

// checkRows makes the embedding the model, and refuses settings that are not for rows alone.
func (s *Spec) checkRows() error {
	if !s.Sparse() {
		return nil
	}
	s.Model = models.Model{Name: s.Rows.String(),
		Tensors: []models.Tensor{{Name: "embedding", Shape: []int{s.Rows.Rows, s.Rows.Width}}}}
	for _, other := range []struct {
		name  string
		given bool
	}{
		{"a policy", s.Policy != ""}, {"codecs", s.Compress != ""}, {"racks that train on their own", s.Outer != ""},
		{"a replay", s.Replay}, {"several aggregators", strings.Contains(s.Server, ",")},
	} {
		if other.given {
			return fmt.Errorf("rows of an embedding and %s: use one of the two", other.name)
		}
	}
	return nil
}

// rowNumber is the bytes of a row's number on the wire.
const rowNumber = 4

// rowsWorker exchanges rows. With an optimizer it pushes the rows that it touches, and pulls the rows of its next step; without one
// it gets the sums of all rows that any worker touches.
type rowsWorker struct {
	*exchanger
	draws        [][]int64 // by step, then again
	grad, pulled []byte    // packed, in the memory of gradients
	union        client.Union
	digest       uint64 // of the rows that it got: for verification in all steps, else in the last one
}

func newRowsWorker(x *exchanger) *rowsWorker {
	n := 4 * x.s.Rows.Touch * x.s.Rows.Width
	return &rowsWorker{exchanger: x, draws: x.s.Rows.Draws(x.s.Seed, x.rank, 1)[0], grad: x.b.src[:n], pulled: x.b.src[n:][:n]}
}

func (x *rowsWorker) touched(step int) []int64 { return x.draws[step%rows.Steps] }

func (x *rowsWorker) fill(step int) { Gradient(f32(x.grad), x.s.Seed, x.rank, 0, step) }

func (x *rowsWorker) step(ctx context.Context, step int) error {
	if x.s.Optimizer == "sum" {
		x.ops[0] = client.Op{Kind: client.PushPull, Src: x.grad, Dst: x.b.dst, Rows: x.touched(step), Union: &x.union}
		return x.submit(ctx)
	}
	x.ops[0] = client.Op{Kind: client.Push, Src: x.grad, Rows: x.touched(step)}
	if err := x.submit(ctx); err != nil {
		return err
	}
	x.ops[0] = client.Op{Kind: client.Pull, Dst: x.pulled, Rows: x.touched(step + 1)}
	return x.submit(ctx)
}

func (x *rowsWorker) ended(step int) error {
	if !x.s.Verify && step < x.s.Steps()-1 {
		return nil
	}
	width, table := x.s.Rows.Width, f32(x.b.dst)
	if x.s.Optimizer == "sum" {
		x.digest = digestRows(x.digest, x.union.Rows(), func(_ int, id int64) []float32 { return table[int(id)*width:][:width] })
	} else {
		table = f32(x.pulled)
		x.digest = digestRows(x.digest, x.touched(step+1), func(i int, _ int64) []float32 { return table[i*width:][:width] })
	}
	return nil
}

func (x *rowsWorker) results(to *workerReport) {
	to.Digests = []uint64{x.digest}
	plan := x.w.Plan()
	to.RowsByLane = make([]uint64, plan.NumLanes())
	for _, draw := range x.draws {
		for _, id := range draw {
			to.RowsByLane[plan.Chunk(int(id)/int(plan.RowsPerChunk(0))).Lane]++
		}
	}
}

// digestRows adds rows and their numbers to a digest.
func digestRows(sum uint64, ids []int64, row func(i int, id int64) []float32) uint64 {
	for i, id := range ids {
		sum = mix(sum ^ uint64(id) ^ digest(row(i, id)))
	}
	return sum
}

// touchedByAny returns the rows that any worker touches in a step, ascending.
func touchedByAny(draws [][][]int64, step int) (union []int64) {
	for _, of := range draws {
		union = append(union, of[step%rows.Steps]...)
	}
	slices.Sort(union)
	return slices.Compact(union)
}

// referenceRows computes in plain Go the digests of what each worker must get: rank by rank and row by row.
func referenceRows(s *Spec, rule optim.Rule, h optim.Hyper) [][]uint64 {
	width := s.Rows.Width
	result := make([]float32, s.Model.Params())
	Gradient(result, s.Seed, 0, 0, InitialStep)
	onWire(s.DType, result)
	v, draws := newWeights(result, rule.States(h)), s.Rows.Draws(s.Seed, 0, s.Workers)
	row := func(_ int, id int64) []float32 { return result[int(id)*width:][:width] }
	grads, digests := make([][]float32, s.Workers), make([][]uint64, s.Workers)
	for r := range grads {
		grads[r], digests[r] = make([]float32, s.Rows.Touch*width), make([]uint64, 1)
	}
	for step := range s.Steps() {
		touched := map[int64][][]float32{} // the gradients of the ranks that touch a row
		for r, g := range grads {
			Gradient(g, s.Seed, r, 0, step)
			onWire(s.DType, g)
			for i, id := range draws[r][step%rows.Steps] {
				touched[id] = append(touched[id], g[i*width:][:width])
			}
		}
		k := optim.Derive(rule, h, uint32(step+1))
		for id, of := range touched {
			out := row(0, id)
			if rule == optim.Sum {
				optim.SumInto(out, of, false)
			} else {
				at := v.part(int(id)*width, width)
				optim.Update(rule, &k, at.w, at.states, of, out)
			}
			onWire(s.DType, out)
		}
		for r := range digests {
			ids := draws[r][(step+1)%rows.Steps]
			if rule == optim.Sum {
				ids = touchedByAny(draws, step)
			}
			digests[r][0] = digestRows(digests[r][0], ids, row)
		}
	}
	return digests
}

// part returns a range of parameters and states.
func (v weights) part(first, n int) (part weights) {
	part.w = v.w[first:][:n]
	for i, state := range v.states {
		if state != nil {
			part.states[i] = state[first:][:n]
		}
	}
	return part
}

// summariseRows adds what the workers report of rows.
func summariseRows(s *Spec, reports []workerReport, res *report.Result) {
	draws, union := s.Rows.Draws(s.Seed, 0, s.Workers), 0.0
	for step := range rows.Steps {
		union += float64(len(touchedByAny(draws, step))) / rows.Steps
	}
	row, touch, steps := uint64(s.Rows.Width*s.DType.Size()), uint64(s.Rows.Touch), uint64(s.Steps())
	res.Rows = &report.Rows{Rows: s.Rows.Rows, Touched: s.Rows.Touch, Union: union, Lanes: make([]float64, res.Lanes)}
	res.Rows.Sent = report.RowBytes{Bytes: reports[0].Sent / steps, Least: touch * (row + rowNumber)}
	res.Rows.Received = report.RowBytes{Bytes: reports[0].Received / steps, Least: uint64(union * float64(row+rowNumber))}
	if s.Optimizer != "sum" { // it asks for rows by their numbers
		res.Rows.Sent.Least += touch * rowNumber
		res.Rows.Received.Least = touch * row
	}
	for _, rep := range reports {
		for lane, n := range rep.RowsByLane {
			res.Rows.Lanes[lane] += float64(n) / rows.Steps
		}
	}
}
