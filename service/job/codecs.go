package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy/ratecontrol"
	"github.com/rackweave/rackweave/service/api"
)

const (
	gaugeEvery    = 10 * time.Millisecond
	gaugeWithin   = time.Second // for the lanes to answer
	codecsQueued  = 16          // for a worker that does not read its Watch
	decisionsKept = 100
	messageTime   = 5 * time.Microsecond // of a chunk on a lane
	candidatesMax = 32
)

// codecControl changes the codecs of a job's gradients while the job runs. Each rack decides for its own workers. Tensors that are
// registered after the first gradient keep their codec.
type codecControl struct {
	job  *Job
	late bool // lanes have not answered the last look; only run uses it

	mu        sync.Mutex              // locked by look and describe, and by callers of the other methods
	specs     []codec.Spec            // by number in decisions
	steps     []uint64                // by rank: begun
	control   *ratecontrol.Controller // if nil, no gradient has come
	stopped   error                   // if not nil, why codecs stay from now on
	pending   string
	decisions []string
}

// startCodecs starts the control of the codecs of a job that has asked for it. If the job is spread over several aggregators, the
// first of them decides.
func startCodecs(j *Job) {
	if j.Spec.Compress.Auto == "" || j.Spec.Part > 0 {
		return
	}
	j.codecs = &codecControl{job: j, steps: make([]uint64, len(j.Members))}
	j.Table.Running.Go(j.codecs.run)
}

// run ends with the job. While its lanes do not answer, codecs stay.
func (c *codecControl) run() {
	tick := time.NewTicker(gaugeEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.job.Failed:
			return
		case <-c.job.Ended:
			return
		case <-tick.C:
		}
		if !c.heed(c.look()) {
			return
		}
	}
}

// heed takes the error of a look, and reports whether to look again. Lanes answer late while a checkpoint is written, for instance.
func (c *codecControl) heed(err error) bool {
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case late && !c.late:
		c.job.Table.Log.Warn("lanes do not answer: codecs stay until they do", "job", c.job.Name, "within", gaugeWithin)
	case err != nil && !late:
		c.stop(err)
	}
	c.late = late
	return err == nil || late
}

func (c *codecControl) stop(err error) {
	c.job.Table.Log.Warn("codecs stay from now on", "job", c.job.Name, "err", err)
	c.mu.Lock()
	c.stopped = err
	c.mu.Unlock()
}

// candidates returns what a controller knows of a job before its tensors, and the codecs by number.
func (s *Spec) candidates() (cfg ratecontrol.Config, specs []codec.Spec, err error) {
	if cfg.Spec, err = ratecontrol.Parse(s.Compress.Auto); err != nil {
		return cfg, nil, err
	}
	specs = []codec.Spec{{}}
	text := cfg.Spec.Codecs
	if text == "" {
		text = "int8+int4+ternary+sign+topk"
	}
	if n := 1 + strings.Count(text, "+"); n > candidatesMax {
		return cfg, nil, fmt.Errorf("auto:codecs names %d candidates: name at most %d", n, candidatesMax)
	}
	for name := range strings.SplitSeq(text, "+") {
		spec, err := codec.Parse(name)
		if err == nil {
			err = (&aggregate.JobConfig{Rule: s.Rule}).CheckCodec(spec)
		}
		switch {
		case err != nil && cfg.Spec.Codecs == "":
			continue
		case err != nil:
			return cfg, nil, err
		case spec.ID == codec.Raw:
			return cfg, nil, fmt.Errorf("%v: none is a candidate in any case: leave it out of codecs", s.Compress)
		case slices.Contains(specs, spec):
			return cfg, nil, fmt.Errorf("%v: candidate %v is named twice: name it once", s.Compress, spec)
		}
		if spec == s.Compress.Up {
			cfg.Start = uint8(len(specs))
		}
		specs = append(specs, spec)
		cfg.Codecs = append(cfg.Codecs, ratecontrol.Codec{Name: spec.String(), Bytes: spec.Bytes, Distortion: spec.Distortion()})
	}
	return cfg, specs, nil
}

// begin makes the controller of the tensors that are registered.
func (c *codecControl) begin() error {
	cfg, specs, err := c.job.Spec.candidates()
	if err != nil {
		return err
	}
	cfg.Ranks, cfg.Message = len(c.job.Members), messageTime.Seconds()/float64(len(c.job.Lanes))
	c.job.Model.RLock()
	for t := range c.job.Model.Plan.NumTensors() {
		tensor := c.job.Model.Plan.Tensor(t)
		g := ratecontrol.Group{Elems: int(tensor.Elems), Chunk: c.job.Spec.ChunkBytes / 4}
		if tensor.Width > 0 {
			g.Elems = 0 // rows travel as they are
		}
		cfg.Groups = append(cfg.Groups, g)
	}
	c.job.Model.RUnlock()
	c.specs, c.control = specs, ratecontrol.New(cfg)
	return nil
}

// look gives the controller the lanes' measurements.
func (c *codecControl) look() error {
	release, err := c.job.Hold()
	if err != nil {
		return nil // the job ends
	}
	defer release()
	c.job.mu.Lock()
	tensors := c.job.Model.tensors
	c.job.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), gaugeWithin)
	defer cancel()
	gauges, tries, err := c.job.Agg.ReadGauges(ctx, tensors)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control == nil {
		if !slices.ContainsFunc(gauges, func(g aggregate.WorkerGauge) bool { return g.Steps > 0 }) {
			return nil
		}
		if err := c.begin(); err != nil {
			return err
		}
	}
	c.part()
	c.tried(tries) // before a step begins, which may be the first decision's
	for rank := range gauges {
		c.take(rank, &gauges[rank])
	}
	return nil
}

// tried gives the controller what candidates would lose of gradients, by tensor and candidate.
func (c *codecControl) tried(tries []aggregate.TensorGauge) {
	var samples []ratecontrol.Sample
	for i, x := range tries {
		if n := len(c.specs); x.Elems > 0 {
			samples = append(samples, ratecontrol.Sample{Group: i / n, Codec: uint8(i % n), Elems: int(x.Elems), Energy: x.Energy,
				Lost: x.Lost})
		}
	}
	c.on(ratecontrol.Event{Kind: ratecontrol.Probed, Samples: samples})
}

// part tells the controller of workers that have left or are lost, whose answers it must not await.
func (c *codecControl) part() {
	for rank, m := range c.job.Members {
		if m.gone() {
			c.on(ratecontrol.Event{Kind: ratecontrol.Leave, Rank: rank})
		}
	}
}

// take gives the controller what is new of a worker.
func (c *codecControl) take(rank int, g *aggregate.WorkerGauge) {
	if f := g.Flow; f.Chunks > 0 {
		c.on(ratecontrol.Event{Kind: ratecontrol.Acked, Rank: rank, Bytes: f.Bytes, Chunks: int(f.Chunks),
			Elapsed: time.Duration(f.NS)})
	}
	if g.Steps == c.steps[rank] {
		return
	}
	var samples []ratecontrol.Sample
	current := c.control.Current().Codecs
	for t, x := range g.Tensors[:min(len(g.Tensors), len(current))] {
		if x.Elems > 0 && x.Codec == c.specs[current[t]].ID {
			samples = append(samples, ratecontrol.Sample{Group: t, Codec: current[t], Elems: int(x.Elems), Energy: x.Energy, Lost: x.Lost})
		}
	}
	c.on(ratecontrol.Event{Kind: ratecontrol.Measured, Rank: rank, Samples: samples})
	c.on(ratecontrol.Event{Kind: ratecontrol.Begin, Rank: rank, Step: g.Steps - 1, Elapsed: time.Duration(g.Computed)})
	c.steps[rank] = g.Steps
}

// on gives the controller an event, and does what follows.
func (c *codecControl) on(e ratecontrol.Event) {
	if c.control == nil {
		return
	}
	log := c.job.Table.Log.With("job", c.job.Name)
	for _, a := range c.control.On(e, nil) {
		d, line := a.Decision, c.control.Line(a.Decision)
		switch a.Kind {
		case ratecontrol.Propose:
			c.pending = line
			log.Debug("codecs are proposed", "decision", line)
			c.announce(d.Version, uint32(d.Step), d.Codecs)
		case ratecontrol.Confirm:
			c.pending = ""
			c.decisions = append(c.decisions, line)
			c.decisions = slices.Clone(c.decisions[max(0, len(c.decisions)-decisionsKept):])
			log.Info("codecs change", "decision", line, "bytes", d.Bytes, "budget", d.Budget)
		case ratecontrol.Withdraw:
			c.pending = ""
			log.Debug("codecs do not change: not all workers have accepted", "decision", line)
			c.announce(0, 0, c.control.Current().Codecs)
		}
	}
}

// announce tells all workers of codecs. A worker that has not read the earlier ones misses them, so a decision is withdrawn.
func (c *codecControl) announce(version, from uint32, places []uint8) {
	m := &api.Codecs{Version: version, From: from, Places: places}
	for _, s := range c.specs {
		m.Codecs = append(m.Codecs, &api.Codec{Id: uint32(s.ID), Stochastic: s.Stochastic, Param: s.Param})
	}
	for _, member := range c.job.Members {
		select {
		case member.codecs <- m:
		default:
		}
	}
}

// SetCodec switches all gradients to a codec once the workers accept it. If it is auto, the controller chooses again. SetCodec
// returns the last decision.
func (j *Job) SetCodec(name string) (was string, err error) {
	c := j.codecs
	switch {
	case c == nil && j.Spec.Part > 0:
		return "", fmt.Errorf("here is part %d of %d, and the aggregator of part 0 chooses its codecs: ask that one", j.Spec.Part, j.Spec.Parts)
	case c == nil:
		return "", fmt.Errorf("its codecs are %v, and stay: begin it with auto, or auto:codecs=int8+int4, to change them", j.Spec.Compress)
	}
	if name != ratecontrol.Auto {
		spec, err := codec.Parse(name)
		if err != nil {
			return "", err
		}
		name = spec.String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopped != nil:
		return "", fmt.Errorf("its codecs stay: begin the job anew to change them: %w", c.stopped)
	case c.control == nil:
		return "", errors.New("no gradient has come yet: try again")
	}
	if n := len(c.decisions); n > 0 {
		was = c.decisions[n-1]
	}
	return was, c.control.Hold(name)
}

// describe adds the decisions to the job's status.
func (c *codecControl) describe(out *api.JobStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out.Decisions, out.PendingDecision = slices.Clone(c.decisions), c.pending
	for rank, m := range out.Members {
		if m.Step = c.steps[rank]; c.control != nil {
			m.LinkBytesPerSecond = c.control.Bandwidth(rank)
		}
	}
}

// AcceptCodecs takes a worker's answer to codecs that Watch announced. What is refused is withdrawn when its step comes.
func (m *Member) AcceptCodecs(_ context.Context, r *api.AcceptCodecsRequest) (*api.AcceptCodecsResponse, error) {
	if c := m.Job.codecs; c != nil && r.Accepted {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.on(ratecontrol.Event{Kind: ratecontrol.Accept, Rank: m.Rank, Version: r.Version})
	}
	return &api.AcceptCodecsResponse{}, nil
}
