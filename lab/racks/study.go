package racks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/overlap"
	"github.com/rackweave/rackweave/bench/peers"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// Study compares exchanges on emulated links.
type Study struct {
	Lab Lab // without a fabric
	// Rate is of a worker's link, in bits per second.
	Rate float64
	// Divisor scales models down, so that a step takes seconds on links as slow as that. Ratios are of bytes and stay.
	Divisor uint64
	Models  []string
	// Progress, if not nil, is told what is measured next.
	Progress func(what string)
}

// Row is one exchange of a study.
type Row struct {
	Links string `json:"links"`
	Model string `json:"model"`
	// Bytes are the model's, for its share of an uplink's bytes; 0 with one rack.
	Bytes float64 `json:"bytes,omitempty"`
	Measured
	// Predicted is what a model of the exchange gives, in seconds; 0: there is none.
	Predicted float64 `json:"predicted_seconds,omitempty"`
	// Error is why the exchange could not be measured.
	Error string `json:"error,omitempty"`
}

// replayRate is the rate, in bits per second, whose computation a study replays: links are slower, and computation is slowed as
// much.
const replayRate = 10e9

// oneRack is the workers of the studies in one rack: those of the RackWeave paper.
const oneRack = 8

// mxnetDivides is from how many elements on MXNet divides a tensor among its servers, by default.
const mxnetDivides = 1_000_000

// on builds a fabric for a part of the study.
func (s *Study) on(ctx context.Context, c Config, part func(*Lab) error) error {
	f, err := Up(ctx, c)
	if err != nil {
		return err
	}
	l := s.Lab
	l.Fabric = f
	return errors.Join(part(&l), f.Close())
}

func (s *Study) say(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
	}
}

// model returns a model as the study exchanges it.
func (s *Study) model(name string) (models.Model, error) {
	m, err := models.Get(name)
	return m.Scaled(s.Divisor), err
}

// OneRack measures the exchange of each model by the workers of one rack, whose aggregator has a NIC for each: ours, Gloo's ring,
// and MXNet's with a server beside each worker, or all servers on the aggregator's machine.
func (s *Study) OneRack(ctx context.Context, name string) (rows []Row, err error) {
	c := Config{Name: name, Racks: 1, Workers: oneRack, Rate: s.Rate, Core: 1}
	links := fmt.Sprintf("1 rack of %d", oneRack)
	err = s.on(ctx, c, func(l *Lab) error {
		var beside, apart []Host
		for w := range oneRack {
			beside, apart = append(beside, l.Worker(0, w)), append(apart, l.Aggregator(0))
		}
		divided := max(mxnetDivides/int(s.Divisor), 1)
		for _, model := range s.Models {
			m, err := s.model(model)
			if err != nil {
				return err
			}
			bound := 4 * float64(m.Params()) / l.payloadRate()
			for _, c := range []contender{
				{"RackWeave", bound, 0, func() (Measured, error) { return l.One(ctx, m, false) }},
				{"Gloo ring", ringLoads(oneRack) * bound, 0, func() (Measured, error) { return l.Peer(ctx, peers.Gloo(), m, nil) }},
				{"MXNet colocated", ringLoads(oneRack) * bound, 0, func() (Measured, error) {
					return l.Peer(ctx, peers.MXNet(divided), m, beside)
				}},
				{"MXNet apart", bound, 0, func() (Measured, error) {
					return l.Peer(ctx, peers.MXNet(divided), m, apart)
				}},
			} {
				if err := s.add(ctx, &rows, Row{Links: links, Model: m.Name}, c); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return rows, err
}

// contender is one way to exchange a model.
type contender struct {
	name             string
	bound, predicted float64 // seconds
	measure          func() (Measured, error)
}

// add measures a contender. One that fails is a row with its error.
func (s *Study) add(ctx context.Context, rows *[]Row, row Row, c contender) (err error) {
	s.say("%s, %s: %s", row.Links, row.Model, c.name)
	if row.Measured, err = c.measure(); err != nil {
		if ctx.Err() != nil {
			return err
		}
		row.Error = err.Error()
	}
	row.Name, row.Bound, row.Predicted = c.name, c.bound, c.predicted
	*rows = append(*rows, row)
	return nil
}

// Of the fabric's links, as the planner takes them: a hop through veth pairs and bridges, with the wake-ups of a busy machine.
const hopLatency = 500e-6

// Planned is the fabric as the planner sees it. An aggregator's NICs are as good as unlimited.
func (c *Config) Planned() *hierarchy.Cluster {
	bytes := goodput / 8
	return &hierarchy.Cluster{
		Racks: c.Racks, Workers: c.Workers, WorkerNIC: c.Rate * bytes, AggregatorNIC: 100 * c.Rate * float64(c.Workers) * bytes,
		Uplink: c.Uplink() * bytes, RackLatency: hopLatency, CoreLatency: 2 * hopLatency,
	}
}

// Cores measures the exchange of each model by two racks behind an oversubscribed core: through our aggregators in every shape that
// two racks can tell apart, through one aggregator for both racks, whose bytes on the core are those of the flat shape, and Gloo's
// and MXNet's.
func (s *Study) Cores(ctx context.Context, name string, over float64) (rows []Row, err error) {
	c := Config{Name: name, Racks: 2, Workers: oneRack / 2, Rate: s.Rate, Core: over}
	links := fmt.Sprintf("2 racks of %d, core %g:1", c.Workers, over)
	err = s.on(ctx, c, func(l *Lab) error {
		var beside []Host
		for rank := range oneRack {
			beside = append(beside, l.WorkerOfRank(rank))
		}
		planned := c.Planned()
		for _, model := range s.Models {
			m, err := s.model(model)
			if err != nil {
				return err
			}
			bytes := 4 * float64(m.Params())
			var all []contender
			for _, shape := range []hierarchy.Shape{hierarchy.Sharded, hierarchy.Root, hierarchy.Ring} {
				p := planned.Predict(shape, bytes, chunk.DefaultChunkBytes)
				all = append(all, contender{shape.String(), p.Bound, p.Seconds,
					func() (Measured, error) { return l.Across(ctx, m, shape) }})
			}
			flat := planned.Predict(hierarchy.Flat, bytes, chunk.DefaultChunkBytes)
			ring := ringLoads(oneRack) * bytes / min(planned.WorkerNIC, planned.Uplink)
			servers := max(ringLoads(oneRack)*bytes/planned.WorkerNIC, float64(c.Workers)*bytes/planned.Uplink)
			all = append(all,
				contender{"flat", flat.Bound, flat.Seconds, func() (Measured, error) { return l.One(ctx, m, false) }},
				contender{"Gloo ring", ring, 0, func() (Measured, error) { return l.Peer(ctx, peers.Gloo(), m, nil) }},
				contender{"MXNet colocated", servers, 0, func() (Measured, error) {
					return l.Peer(ctx, peers.MXNet(max(mxnetDivides/int(s.Divisor), 1)), m, beside)
				}})
			for _, c := range all {
				row := Row{Links: links, Model: m.Name, Bytes: bytes}
				if err := s.add(ctx, &rows, row, c); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return rows, err
}

// Running measures the exchange of a model through aggregators that run, one in each rack, whatever their shape is: the bound and
// the prediction are of the planner's choice.
func (l *Lab) Running(ctx context.Context, m models.Model) (Row, error) {
	bytes := 4 * float64(m.Params())
	row := Row{Links: fmt.Sprintf("%d racks of %d, core %g:1", l.Racks, l.Workers, l.Core), Model: m.Name}
	if l.Racks > 1 {
		row.Bytes = bytes
	}
	p := l.Planned().Predict(hierarchy.Sharded, bytes, min(chunk.DefaultChunkBytes, bytes))
	measured, err := l.exchange(ctx, l.spec(m, l.Servers()))
	row.Measured, row.Predicted = measured, p.Seconds
	row.Name, row.Bound = "RackWeave", p.Bound
	return row, err
}

// ringLoads is what a ring of n, or servers beside n workers, put on a worker's link in each direction, in models.
func ringLoads(n int) float64 { return 2 * float64(n-1) / float64(n) }

// Replay measures steps that also compute, as long as models' published times say, on links of the study that stand for 10 Gb/s.
func (s *Study) Replay(ctx context.Context, name string) (rows []Row, err error) {
	c := Config{Name: name, Racks: 1, Workers: oneRack, Rate: s.Rate, Core: 1}
	slower := replayRate / s.Rate / float64(s.Divisor)
	err = s.on(ctx, c, func(l *Lab) error {
		for _, model := range s.Models {
			m, err := s.model(model)
			if err != nil {
				return err
			}
			if m.Compute.Time == 0 {
				return fmt.Errorf("a replay of %s, for which no times are published", model)
			}
			batch := m.Compute.Batch
			m = m.Computing(time.Duration(float64(m.Compute.Time) * slower))
			m.Compute.Batch = batch
			s.say("replay of %s", m.Name)
			row := Row{Links: fmt.Sprintf("1 rack of %d", oneRack), Model: m.Name}
			step := overlap.Ways(oneRack)[0].Step(m, l.payloadRate())
			if row.Measured, err = l.One(ctx, m, true); err != nil {
				return err
			}
			row.Name, row.Predicted, row.Bound = "RackWeave, replay", step.Total, step.Total
			row.Note = fmt.Sprintf("%.0f samples/s at 10 Gb/s", float64(oneRack*batch)/row.Seconds*slower)
			rows = append(rows, row)
		}
		return nil
	})
	return rows, err
}
