package bench

import (
	"context"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/roofline"
	"github.com/rackweave/rackweave/verbs"
)

// perftestSeconds is the duration of ib_write_bw. Emulated devices need seconds.
const perftestSeconds = 4

// MeasureRoofline measures the most that this machine can do of the spec's exchange, and puts the result's share of it into res. It
// uses a memory probe where workers and aggregator share memory, a bare socket loop for tcp, and perftest's ib_write_bw for ibv. It
// measures within this host, and so has no roofline for an aggregator elsewhere that is reached over RDMA.
func MeasureRoofline(ctx context.Context, s *Spec, res *report.Result) error {
	var roof report.Roofline
	var err error
	switch res.Provider {
	case verbs.ProviderSHM:
		roof, err = roofline.Memory(s.Workers, s.Bytes())
	case verbs.ProviderTCP:
		roof, err = roofline.TCP(s.Workers, res.Lanes, s.Bytes())
	case verbs.ProviderIBV:
		if s.Server != "" {
			return nil
		}
		roof, err = perftest(ctx, s, res)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	res.SetRoofline(roof)
	return ctx.Err()
}

// perftest measures the same device with the same messages, both ways, over as many queue pairs.
func perftest(ctx context.Context, s *Spec, res *report.Result) (report.Roofline, error) {
	d, err := verbs.Open(verbs.ProviderIBV, "", s.ProviderOptions)
	if err != nil {
		return report.Roofline{}, err
	}
	name := d.Attr().Name
	if err := d.Close(); err != nil {
		return report.Roofline{}, err
	}
	p := roofline.Perftest{Device: name, Bytes: res.ChunkBytes, QPs: res.Workers * res.Lanes, Seconds: perftestSeconds}
	return p.Measure(ctx)
}

// Times turns a result into one side of a comparison.
func Times(res report.Result, err error) (report.Times, error) {
	setting := res.Memory
	if res.Codecs != nil {
		setting += ", codecs " + res.Codecs.Names
	}
	return report.Times{
		Name: "rackweave", Setting: setting, Transport: res.Provider, Bytes: res.Bytes, Workers: res.Workers, TimeUS: res.TimeUS,
		Wrong: res.Wrong,
	}, err
}
