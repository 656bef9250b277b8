package racks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench"
	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/peers"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// Lab measures exchanges on a fabric.
type Lab struct {
	*Fabric
	Program string    // the rackweave command
	Log     io.Writer // what aggregators and failed workers say
	Iters   int
	Warmup  int
	Verify  bool
	// Compress names the codecs of gradients and answers. If empty, nothing is compressed.
	Compress string
	// Between names the codecs of sums and results between racks. If empty, they travel as they are.
	Between string
}

// Measured holds the time of a step of an exchange, and what the links carried meanwhile.
type Measured struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`       // of a step, the median
	Bound   float64 `json:"bound_seconds"` // what the tightest link takes for the bytes of a step
	Note    string  `json:"note,omitempty"`
	// Uplinks are the bytes that the busiest uplink carried in a direction, per exchange, as [Counters] counts; with one rack 0.
	Uplinks float64        `json:"uplink_bytes"`
	Losses  uint64         `json:"segments_sent_again"`
	CPU     float64        `json:"cpu"` // share of the machine's cores that were busy
	Replay  *report.Replay `json:"replay,omitempty"`
	Codecs  *report.Codecs `json:"codecs,omitempty"`
}

// payloadRate returns the payload that a worker's link carries, in bytes per second.
func (c *Config) payloadRate() float64 { return c.Rate * goodput / 8 }

// spec is the exchange of a model by all workers.
func (l *Lab) spec(m models.Model, server string) bench.Spec {
	return bench.Spec{
		Workers: l.Racks * l.Workers, Provider: verbs.ProviderTCP, Model: m, DType: chunk.F32, Optimizer: "sum",
		Iters: l.Iters, Warmup: l.Warmup, Verify: l.Verify, Compress: l.Compress, Seed: 1,
		Target: bench.Target{Server: server},
	}
}

// One measures the exchange of a model through the first rack's aggregator, by all workers. With replay set they compute.
func (l *Lab) One(ctx context.Context, m models.Model, replay bool) (Measured, error) {
	a, err := l.serve(ctx, l.Aggregator(0), window)
	if err != nil {
		return Measured{}, err
	}
	spec := l.spec(m, a.URL)
	spec.Replay = replay
	measured, err := l.exchange(ctx, spec)
	return measured, errors.Join(err, a.Stop())
}

// Across measures the exchange of a model through the aggregators of all racks, which reduce among themselves.
func (l *Lab) Across(ctx context.Context, m models.Model, shape hierarchy.Shape) (Measured, error) {
	c, err := l.Serve(ctx, shape.String())
	if err != nil {
		return Measured{}, err
	}
	measured, err := l.exchange(ctx, l.spec(m, l.Servers()))
	return measured, errors.Join(err, c.Stop())
}

func (l *Lab) exchange(ctx context.Context, spec bench.Spec) (Measured, error) {
	runner := bench.Runner{
		Worker: []string{l.Program, "bench-worker"}, Log: l.Log,
		Enter: func(rank int) []string { return l.WorkerOfRank(rank).Command() },
	}
	return l.during(ctx, 1+spec.Steps(), func() (Measured, error) { // a broadcast carries what a step does
		res, err := runner.Run(ctx, spec)
		if err == nil && res.Wrong > 0 {
			err = fmt.Errorf("%d elements differ from plain Go", res.Wrong)
		}
		return Measured{Seconds: res.TimeUS.P50 / 1e6, Replay: res.Replay, Codecs: res.Codecs}, err
	})
}

// Peer measures another library's exchange of a model by all workers, tensor by tensor.
func (l *Lab) Peer(ctx context.Context, p *peers.Peer, m models.Model, servers []Host) (Measured, error) {
	if err := p.Probe(ctx); err != nil {
		return Measured{}, err
	}
	n := l.Racks * l.Workers
	spec := peers.Spec{Workers: n, Bytes: 4 * m.Params(), DType: "f32", Iters: l.Iters, Warmup: l.Warmup, Servers: peerHosts(servers),
		Rate: l.Rate / l.Core / 8 / 4}
	for _, t := range m.Tensors {
		spec.Tensors = append(spec.Tensors, 4*t.Elems())
	}
	for rank := range n {
		spec.Hosts = append(spec.Hosts, peerHosts([]Host{l.WorkerOfRank(rank)})...)
	}
	return l.during(ctx, l.Iters+l.Warmup, func() (Measured, error) {
		times, err := p.Run(ctx, spec)
		if err == nil && times.Wrong > 0 {
			err = fmt.Errorf("%s: %d elements are wrong", p.Name, times.Wrong)
		}
		return Measured{Seconds: times.TimeUS.P50 / 1e6, Note: times.Setting}, err
	})
}

func peerHosts(hosts []Host) (all []peers.Host) {
	for _, h := range hosts {
		all = append(all, peers.Host{Namespace: h.Namespace, Interface: Interface, Addr: h.Addr})
	}
	return all
}

// during adds what counters say of a run of so many exchanges.
func (l *Lab) during(ctx context.Context, exchanges int, run func() (Measured, error)) (Measured, error) {
	ports, err := l.Counters(ctx)
	if err != nil {
		return Measured{}, err
	}
	lost, err := l.Retransmits(ctx)
	if err != nil {
		return Measured{}, err
	}
	busy, all, err := processorTime()
	if err != nil {
		return Measured{}, err
	}
	m, err := run()
	if err != nil {
		return m, err
	}
	busyNow, allNow, err := processorTime()
	if err != nil {
		return m, err
	}
	m.CPU = (busyNow - busy) / math.Max(allNow-all, 1)
	lostNow, err := l.Retransmits(ctx)
	if err != nil {
		return m, err
	}
	m.Losses = lostNow - lost
	portsNow, err := l.Counters(ctx)
	if err != nil {
		return m, err
	}
	for rack := range l.Racks {
		c := portsNow[UplinkPort(rack)].Since(ports[UplinkPort(rack)])
		m.Uplinks = max(m.Uplinks, float64(max(c.Sent, c.Received))/float64(exchanges))
	}
	return m, nil
}

// processorTime returns the ticks that all cores have been busy, and all ticks.
func processorTime() (busy, all float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseProcessorTime(string(text))
}

// othersShare returns the share of all cores that is busy while the lab does nothing. It waits a while for what still ends.
func othersShare() (share float64, err error) {
	for range 10 {
		busy, all, err := processorTime()
		if err != nil {
			return 0, err
		}
		time.Sleep(500 * time.Millisecond)
		busyNow, allNow, err := processorTime()
		if err != nil {
			return 0, err
		}
		if share = (busyNow - busy) / math.Max(allNow-all, 1); share <= mostOthers {
			break
		}
	}
	return share, nil
}

func parseProcessorTime(text string) (busy, all float64, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line) // cpu, user, nice, system, idle, waiting for input or output, …
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("read processor times from %q: not what the kernel prints", line)
	}
	for i, field := range fields[1:9] { // the others are part of user and nice
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read processor times: %w", err)
		}
		if all += ticks; i != 3 && i != 4 {
			busy += ticks
		}
	}
	return busy, all, nil
}
