package racks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/overlap"
	"github.com/rackweave/rackweave/bench/peers"
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
			n := float64(4 * m.Params())
			for _, contender := range []struct {
				name    string
				loads   float64 // models that the busiest link carries in a direction
				measure func() (Measured, error)
			}{
				{"RackWeave", 1, func() (Measured, error) { return l.One(ctx, m, false) }},
				{"Gloo's ring", ringLoads(oneRack), func() (Measured, error) { return l.Peer(ctx, peers.Gloo(), m, nil) }},
				{"MXNet, colocated servers", ringLoads(oneRack), func() (Measured, error) {
					return l.Peer(ctx, peers.MXNet(divided), m, beside)
				}},
				{"MXNet, servers at the aggregator", 1, func() (Measured, error) {
					return l.Peer(ctx, peers.MXNet(divided), m, apart)
				}},
			} {
				s.say("%s, %s: %s", links, m.Name, contender.name)
				row := Row{Links: links, Model: m.Name}
				if row.Measured, err = contender.measure(); err != nil {
					if ctx.Err() != nil {
						return err
					}
					row.Error = err.Error()
				}
				row.Name, row.Bound = contender.name, contender.loads*n/l.payloadRate()
				rows = append(rows, row)
			}
		}
		return nil
	})
	return rows, err
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
