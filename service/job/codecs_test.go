package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy/ratecontrol"
	"github.com/rackweave/rackweave/service/api"
)

// played is a control whose lanes and workers the test plays.
type played struct {
	*codecControl
	t     *testing.T
	step  uint64
	bytes float64 // of a second, of each worker's link
}

func newPlayed(t *testing.T, compress string, workers int) *played {
	t.Helper()
	s := Spec{Rule: optim.Sum, ChunkBytes: chunk.DefaultChunkBytes}
	var err error
	if s.Compress, err = codec.ParsePair(compress, true); err != nil {
		t.Fatal(err)
	}
	j := &Job{Table: &Table{Config: Config{Log: slog.New(slog.DiscardHandler)}}, Spec: s}
	j.Lanes = []chunk.Lane{{}}
	if j.Model.Plan, err = chunk.NewPlan(chunk.Config{ChunkBytes: s.ChunkBytes, Lanes: j.Lanes}); err != nil {
		t.Fatal(err)
	}
	var tensors []chunk.Tensor
	for i := range 8 {
		tensors = append(tensors, chunk.Tensor{Name: fmt.Sprint(i), Elems: 100_000, DType: chunk.F32})
	}
	if err := j.Model.Plan.Add(tensors); err != nil {
		t.Fatal(err)
	}
	for rank := range workers {
		j.Members = append(j.Members, &Member{Job: j, Rank: rank, Out: make(chan struct{}), codecs: make(chan *api.Codecs, codecsQueued)})
	}
	j.codecs = &codecControl{job: j, steps: make([]uint64, workers)}
	return &played{codecControl: j.codecs, t: t, bytes: 1e6}
}

// next plays a step, after which each worker computes for 100 ms, and returns what rank 0 is told.
func (p *played) next() *api.Codecs {
	p.t.Helper()
	p.step++
	if p.control == nil {
		if err := p.begin(); err != nil {
			p.t.Fatal(err)
		}
	}
	p.part()
	for rank, m := range p.job.Members {
		g := aggregate.WorkerGauge{Steps: p.step, Computed: 1e8}
		if m.gone() {
			g = aggregate.WorkerGauge{Steps: p.steps[rank]}
		}
		g.Flow.Bytes, g.Flow.Chunks, g.Flow.NS = int64(p.bytes), 8, 1e9
		p.take(rank, &g)
	}
	return told(p.job.Members[0])
}

func told(m *Member) *api.Codecs {
	select {
	case c := <-m.codecs:
		return c
	default:
		return nil
	}
}

func (p *played) accept(version uint32, ranks ...int) {
	for _, rank := range ranks {
		p.on(ratecontrol.Event{Kind: ratecontrol.Accept, Rank: rank, Version: version})
	}
}

func TestCodecsThatOneWorkerDoesNotAcceptAreWithdrawn(t *testing.T) {
	p := newPlayed(t, "auto:budget=0.15", 2)
	c := p.next()
	if c == nil || c.Version != 1 || c.From == 0 || len(c.Places) != 8 {
		t.Fatalf("%v is proposed", c)
	}
	p.accept(1, 0)
	back := p.next()
	for ; back == nil && p.step < uint64(c.From); back = p.next() {
	}
	if back == nil || back.Version != 0 || back.From != 0 || codec.ID(back.Codecs[back.Places[0]].Id) != codec.Int8 {
		t.Fatalf("%v withdraws it", back)
	}
	again := told(p.job.Members[0])
	if again == nil {
		again = p.next()
	}
	if again == nil || again.Version != 2 || uint64(again.From) < p.step+uint64(c.From-1) {
		t.Fatalf("%v comes next, with more time", again)
	}
	p.accept(2, 0, 1)
	out := &api.JobStatus{Members: []*api.WorkerStatus{{}, {}}}
	p.describe(out)
	if len(out.Decisions) != 1 || !strings.HasPrefix(out.Decisions[0], "2 from step") || out.PendingDecision != "" {
		t.Errorf("%v", out)
	}
}

func TestADeadWorkerIsNotAwaited(t *testing.T) {
	p := newPlayed(t, "auto:budget=0.15", 2)
	c := p.next()
	p.accept(c.Version, 0)
	close(p.job.Members[1].Out)
	p.next()
	if len(p.decisions) != 1 {
		t.Errorf("decisions %q, pending %q", p.decisions, p.pending)
	}
}

func TestALinkThatSwingsChangesCodecsSeldom(t *testing.T) {
	p := newPlayed(t, "auto", 2)
	for range 6000 {
		p.bytes = []float64{20e6, 4e6}[p.step/200%2]
		for c := p.next(); c != nil; c = told(p.job.Members[0]) {
			told(p.job.Members[1])
			p.accept(c.Version, 0, 1)
		}
	}
	// The windows double with each mistake: 100, 200, … 1600 steps.
	if n := len(p.decisions); n == 0 || n > 30 {
		t.Errorf("%d decisions in %d steps: %q", n, p.step, p.decisions)
	}
	if b := p.control.Bandwidth(0); b < 4e6*0.9 || b > 20e6*1.1 {
		t.Errorf("the link is estimated at %v", b)
	}
}

func TestAWorkerThatDoesNotReadItsWatchBlocksNothing(t *testing.T) {
	p := newPlayed(t, "auto:budget=0.15", 2)
	for range 4 * codecsQueued * 64 {
		p.next() // and rank 1 reads nothing
	}
	if len(p.decisions) != 0 {
		t.Errorf("%q", p.decisions)
	}
}

func TestAnOperatorsCodecHoldsUntilTheControllerChoosesAgain(t *testing.T) {
	p := newPlayed(t, "auto:budget=0.15", 2)
	if _, err := p.job.SetCodec("int8"); err == nil {
		t.Error("a codec was set before the first gradient")
	}
	settle := func() {
		for range 200 {
			for c := p.next(); c != nil; c = told(p.job.Members[0]) {
				p.accept(c.Version, 0, 1)
			}
			for told(p.job.Members[1]) != nil {
			}
		}
	}
	for _, tc := range []struct{ codec, last string }{{"auto", " int4*7"}, {"sign", " sign*8"}, {"none", " none*8"},
		{"auto", " int4*7"}} {
		p.next()
		if _, err := p.job.SetCodec(tc.codec); err != nil {
			t.Fatal(err)
		}
		settle()
		if last := p.decisions[len(p.decisions)-1]; !strings.HasSuffix(last, tc.last) {
			t.Errorf("%s: %q", tc.codec, last)
		}
	}
	if _, err := p.job.SetCodec("sign"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.job.SetCodec("fp8-e4m3"); err == nil || !strings.Contains(err.Error(), "use one of none, int8, int4") {
		t.Errorf("%v", err)
	}
	settle()
	if last := p.decisions[len(p.decisions)-1]; !strings.HasSuffix(last, " sign*8") {
		t.Errorf("after a codec that was refused: %q", last)
	}
}

func TestLanesThatAnswerLateAreAskedAgain(t *testing.T) {
	p := newPlayed(t, "auto:budget=0.15", 2)
	var log strings.Builder
	p.job.Table.Log = slog.New(slog.NewTextHandler(&log, nil))
	p.next()
	for _, err := range []error{context.DeadlineExceeded, fmt.Errorf("lane 1: %w", context.DeadlineExceeded), nil} {
		if !p.heed(err) {
			t.Errorf("after %v nobody looks again", err)
		}
	}
	if _, err := p.job.SetCodec("int4"); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "lanes do not answer"); n != 1 {
		t.Errorf("%d lines of log: %s", n, &log)
	}
	if p.heed(errors.New("refused")) {
		t.Error("the control goes on after an error that stays")
	}
}

func TestACodecIsNotSetWhereNobodyChoosesAnyMore(t *testing.T) {
	p := newPlayed(t, "auto:budget=0.15", 2)
	p.next()
	p.stop(context.DeadlineExceeded)
	if _, err := p.job.SetCodec("int4"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the control has stopped: %v", err)
	}
	p.job.codecs, p.job.Spec.Part, p.job.Spec.Parts = nil, 1, 2
	if _, err := p.job.SetCodec("int4"); err == nil || !strings.Contains(err.Error(), "the aggregator of part 0 chooses its codecs") {
		t.Errorf("at the second of two aggregators: %v", err)
	}
}
