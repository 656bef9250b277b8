package racks

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/peers"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/lab/study/overlap"
	"github.com/rackweave/rackweave/lab/study/transfers"
)

// Study compares exchanges on emulated links.
type Study struct {
	Lab  Lab    // without a fabric
	Name string // of the fabrics
	Settings
	OneRack []string // models to exchange in one rack
	Across  []string // models to exchange across racks
	Replay  []string // models whose computation to replay beside the exchange
	Cores   []float64
	Only    *regexp.Regexp // nil: everything
	// Progress, if not nil, is told what is measured next, and what came of it.
	Progress func(what string)
}

// Settings holds what rows of a record have in common.
type Settings struct {
	// Rate is of a worker's link, in bits per second.
	Rate float64 `json:"rate"`
	// Divisor scales models down, so that a step takes seconds on links as slow as that. Ratios are of bytes and stay.
	Divisor uint64 `json:"divisor"`
	Iters   int    `json:"iters"`
}

const (
	// replayRate is the rate, in bits per second, whose computation a study replays: links are slower, and computation is slowed
	// as much.
	replayRate = 10e9
	// allWorkers is the workers of a study: those of the RackWeave paper.
	allWorkers = 8
	// mxnetDivides is from how many elements on MXNet divides a tensor among its servers, by default.
	mxnetDivides = 1_000_000
)

// item is one exchange of a study.
type item struct {
	Row     // without what is measured
	measure func(context.Context, *Lab) (Measured, error)
}

// items lists all that the study measures. Items of the same fabric follow each other.
func (s *Study) items() (all []item, err error) {
	each := func(of []string, list func(models.Model) []item) {
		for _, name := range of {
			m, e := models.Get(name)
			if e != nil {
				err = errors.Join(err, e)
				continue
			}
			for _, i := range list(m) {
				if s.Only == nil || s.Only.MatchString(i.Key()) {
					all = append(all, i)
				}
			}
		}
	}
	one := Config{Name: s.Name, Racks: 1, Workers: allWorkers, Rate: s.Rate, Core: 1}
	each(s.OneRack, func(m models.Model) []item { return s.oneRack(one, m.Scaled(s.Divisor)) })
	for _, core := range s.Cores {
		c := Config{Name: s.Name, Racks: 2, Workers: allWorkers / 2, Rate: s.Rate, Core: core}
		each(s.Across, func(m models.Model) []item {
			m = m.Scaled(s.Divisor)
			ours := shapesOn(c, m, hierarchy.Sharded, hierarchy.Root, hierarchy.Ring, hierarchy.Flat)
			return append(ours, s.peersOn(c, m)...)
		})
	}
	for _, core := range s.Cores[:min(len(s.Cores), 1)] { // with two racks some shapes are alike
		c := Config{Name: s.Name, Racks: 4, Workers: allWorkers / 4, Rate: s.Rate, Core: core}
		each(s.Across, func(m models.Model) []item {
			return shapesOn(c, m.Scaled(s.Divisor), hierarchy.Sharded, hierarchy.Root, hierarchy.Chain, hierarchy.Flat)
		})
	}
	each(s.Replay, func(m models.Model) []item { return []item{s.replay(one, m)} })
	return all, err
}

// bytesOf returns a model's bytes on the wire.
func bytesOf(m models.Model) float64 { return 4 * float64(m.Params()) }

// newRow describes an exchange.
func newRow(c Config, m models.Model, name string, bound float64) Row {
	return Row{Fabric: c, Model: m.Name, Bytes: bytesOf(m), Measured: Measured{Name: name, Bound: bound}}
}

// planned adds what the planner's model and its simulation give for a shape.
func (r Row) planned(s hierarchy.Shape) Row {
	p := r.Fabric.Planned().Predict(s, r.Bytes, min(chunk.DefaultChunkBytes, r.Bytes))
	r.Shape, r.Bound, r.Predicted = s.String(), p.Bound, p.Seconds
	return r
}

// oneRack is the exchange of a model by the workers of one rack, whose aggregator has a NIC for each: ours, and other libraries'.
func (s *Study) oneRack(c Config, m models.Model) []item {
	ours := item{
		newRow(c, m, "RackWeave", 0).planned(hierarchy.Sharded),
		func(ctx context.Context, l *Lab) (Measured, error) { return l.One(ctx, m, false) },
	}
	return append([]item{ours}, s.peersOn(c, m)...)
}

// shapesOn is the exchange of a model through the aggregators of all racks, in shapes.
func shapesOn(c Config, m models.Model, shapes ...hierarchy.Shape) (all []item) {
	for _, shape := range shapes {
		all = append(all, item{
			newRow(c, m, shape.String(), 0).planned(shape),
			func(ctx context.Context, l *Lab) (Measured, error) { return l.Across(ctx, m, shape) },
		})
	}
	return all
}

// peersOn is the exchange of a model by other libraries: Gloo's ring, and MXNet's with a server beside each worker, or as many on
// the machine of each rack's aggregator.
func (s *Study) peersOn(c Config, m models.Model) []item {
	var beside, apart []Host
	for rank := range c.Racks * c.Workers {
		beside, apart = append(beside, c.WorkerOfRank(rank)), append(apart, c.Aggregator(rank/c.Workers))
	}
	peer := func(name string, bound float64, p func() *peers.Peer, servers []Host) item {
		return item{newRow(c, m, name, bound), func(ctx context.Context, l *Lab) (Measured, error) {
			return l.Peer(ctx, p(), m, servers)
		}}
	}
	mxnet := func() *peers.Peer { return peers.MXNet(max(mxnetDivides/int(s.Divisor), 1)) }
	planned, bytes, n := c.Planned(), bytesOf(m), c.Racks*c.Workers
	// What a ring of n, or servers beside n workers, put on a worker's link in each direction.
	load := 2 * float64(n-1) / float64(n) * bytes
	ring, servers, alone := load/planned.WorkerNIC, load/planned.WorkerNIC, bytes/planned.WorkerNIC
	if c.Racks > 1 {
		// Gradients and parameters cross the core for each worker.
		crossing := planned.Loads(hierarchy.Flat)[planner.Uplink] * bytes / planned.Uplink
		ring, servers, alone = max(ring, load/planned.Uplink), max(servers, crossing), max(alone, crossing)
	}
	return []item{
		peer("Gloo ring", ring, peers.Gloo, nil),
		peer("MXNet colocated", servers, mxnet, beside),
		peer("MXNet apart", alone, mxnet, apart),
	}
}

// replay is steps that also compute, as long as the model's published times say, on links of the study that stand for 10 Gb/s.
func (s *Study) replay(c Config, m models.Model) item {
	slower := replayRate / s.Rate / float64(s.Divisor)
	batch, whole := m.Compute.Batch, m.Compute.Time
	m = m.Scaled(s.Divisor).Computing(time.Duration(float64(whole) * slower))
	m.Compute.Batch = batch
	step := overlap.Ways(allWorkers)[0].Step(m, c.payloadRate()).Total
	row := newRow(c, m, "RackWeave, replay", step)
	row.Predicted = step
	return item{row, func(ctx context.Context, l *Lab) (Measured, error) {
		if whole == 0 {
			return Measured{}, fmt.Errorf("a replay of %s, for which no times are published", m.Name)
		}
		measured, err := l.One(ctx, m, true)
		measured.Note = fmt.Sprintf("%.0f samples/s at 10 Gb/s", float64(allWorkers*batch)/measured.Seconds*slower)
		return measured, err
	}}
}

// Run measures what the record does not have yet, and calls saved after each row.
func (s *Study) Run(ctx context.Context, rec *Record, saved func() error) (err error) {
	items, err := s.items()
	if err != nil {
		return err
	}
	var f *Fabric // that is up
	defer func() {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	for n, i := range items {
		label := fmt.Sprintf("[%d/%d] %s", n+1, len(items), i.Key())
		if rec.has(i.Key()) {
			s.say("%s: measured before", label)
			continue
		}
		if f == nil || f.Config != i.Fabric {
			if f, err = replace(ctx, f, i.Fabric); err != nil {
				return err
			}
		}
		s.say("%s", label)
		row, err := s.measure(ctx, f, i)
		if err != nil {
			return err
		}
		s.say("%s: %s", label, row.summary())
		rec.put(row)
		if err := saved(); err != nil {
			return err
		}
	}
	return err
}

// replace takes a fabric down, if there is one, and builds another.
func replace(ctx context.Context, f *Fabric, c Config) (*Fabric, error) {
	if f != nil {
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return Up(ctx, c)
}

// measure measures an item. One that fails is a row with its error.
func (s *Study) measure(ctx context.Context, f *Fabric, i item) (Row, error) {
	others, err := othersShare()
	if err != nil {
		return Row{}, err
	}
	l := s.Lab
	l.Fabric, l.Iters = f, s.Iters
	row := i.Row
	row.Measured, err = i.measure(ctx, &l)
	if err != nil {
		if ctx.Err() != nil {
			return row, err
		}
		row.Error = err.Error()
	}
	row.Name, row.Bound, row.Others = i.Name, i.Bound, others
	return row, nil
}

func (s *Study) say(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
	}
}

// hopLatency is of the fabric's links, as the planner takes them: a hop through veth pairs and bridges, with the wake-ups of a busy
// machine.
const hopLatency = 500e-6

// Planned is the fabric as the planner sees it. An aggregator's NICs are as good as unlimited.
func (c *Config) Planned() *planner.Cluster {
	bytes := goodput / 8
	return &planner.Cluster{
		Racks: c.Racks, Workers: c.Workers, WorkerNIC: c.Rate * bytes, AggregatorNIC: 100 * c.Rate * float64(c.Workers) * bytes,
		Uplink: c.Uplink() * bytes, Pods: c.Pods, PodUplink: c.PodUplink() * bytes, RackLatency: hopLatency, CoreLatency: 2 * hopLatency,
	}
}

// Simulated follows a shape's every transfer of a model.
func (c *Config) Simulated(s hierarchy.Shape, bytes float64) float64 {
	size := min(chunk.DefaultChunkBytes, bytes)
	return transfers.Simulate(c.Planned(), s, int(bytes/size), size)
}

// Running measures the exchange of a model through aggregators that run, one in each rack, whatever their shape is: the bound and
// the prediction are of the planner's choice.
func (l *Lab) Running(ctx context.Context, m models.Model) (Row, error) {
	row := newRow(l.Config, m, "RackWeave", 0).planned(hierarchy.Sharded)
	bound := row.Bound
	measured, err := l.exchange(ctx, l.spec(m, l.Servers()))
	row.Measured, row.Name, row.Bound = measured, "RackWeave", bound
	if l.Verify && err == nil {
		row.Note = "every bit is plain Go's"
	}
	return row, err
}
