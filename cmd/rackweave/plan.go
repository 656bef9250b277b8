package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/hierarchy"
)

// planFlags are what `rackweave plan` is told of a cluster, as people write it.
type planFlags struct {
	racks, workers, pods                          int
	link, aggregatorLink, core, podCore, spine    string
	rackLatency, coreLatency, compute             time.Duration
	model, bytes, dtype, fold, memory, pcie       string
	outer                                         string
	chunkBytes                                    int
	touches                                       float64
	priceWorker, priceAggregator, priceUplinkGbps float64
	table1, table2, asJSON                        bool
	scale                                         []int
	svgDir                                        string
	probe, inRack, here                           bool
	server                                        client.Config
	provider, clusterFile                         string
	measured                                      *client.Link // a worker's; nil: as link and rackLatency say
}

// ofProbe are the flags that say nothing without --probe.
var ofProbe = []string{"server", "cluster", "ca", "token", "timeout", "provider", "in-rack"}

// checkProbe refuses flags that would say nothing.
func (f *planFlags) checkProbe(given *pflag.FlagSet) error {
	for _, name := range ofProbe {
		if !f.probe && given.Changed(name) {
			value := fmt.Sprintf(" %q", given.Lookup(name).Value)
			if name == "token" {
				value = "" // a secret
			}
			return fmt.Errorf("--%s%s: without --probe no aggregator is asked: add --probe, or leave it out", name, value)
		}
	}
	for _, other := range []string{"probe", "table1", "table2", "scale"} {
		if f.here && given.Changed(other) {
			return fmt.Errorf("--here with --%s: give one of them", other)
		}
	}
	for _, name := range []string{"link", "rack-latency"} {
		if f.probe && given.Changed(name) {
			return fmt.Errorf("--%s %s: with --probe links are measured: leave it out", name, given.Lookup(name).Value)
		}
	}
	if given.Changed("server") && f.clusterFile != "" {
		return fmt.Errorf("--server %q and --cluster %q: give one of them", f.server.Server, f.clusterFile)
	}
	return nil
}

// checkValues refuses numbers that no cluster has, and flags that nothing goes by.
func (f *planFlags) checkValues(given *pflag.FlagSet) error {
	for name, d := range map[string]time.Duration{"compute": f.compute, "rack-latency": f.rackLatency, "core-latency": f.coreLatency} {
		if d < 0 {
			return fmt.Errorf("--%s %v: use a time of at least 0", name, d)
		}
	}
	for name, v := range map[string]float64{"price-worker": f.priceWorker, "price-aggregator": f.priceAggregator,
		"price-uplink": f.priceUplinkGbps, "memory-touches": f.touches} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("--%s %v: use a finite number of at least 0", name, v)
		}
	}
	one := f.racks == 1 && len(f.scale) == 0 && !f.probe && !f.table2
	switch {
	case f.table1 && f.table2:
		return errors.New("--table1 and --table2: give one of them")
	case given.Changed("pod-core") && f.pods == 0:
		return fmt.Errorf("--pod-core %s without pods: give their number by --pods", f.podCore)
	case given.Changed("core") && one:
		return fmt.Errorf("--core %s with one rack, which has no uplink: give --racks", f.core)
	case f.chunkBytes < minPlanChunk || f.chunkBytes%minPlanChunk != 0:
		return fmt.Errorf("--chunk-bytes %d: use a multiple of %d", f.chunkBytes, minPlanChunk)
	}
	return nil
}

// minPlanChunk is the cache line by which chunks are cut.
const minPlanChunk = 64

func planCommand() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Predict what a step takes on a cluster that may not exist, and which shape of reduction is fastest",
		Long: `Predict what exchanging a model's gradients takes on a cluster, for every shape in which its aggregators can reduce
among themselves, with the bytes on every link, and how many workers one aggregator carries.

A step streams, so it takes the bytes on the tightest link over its rate, and what the last chunk takes alone.

With --probe the aggregators of a cluster that runs measure the links between their racks, some seconds in which jobs on these
links are slower, and what is predicted is what crossing the core takes by these. With --in-rack as well, this host measures its own
link to the aggregator, as a worker's, and whole steps are predicted. For an aggregator that is alone --probe measures just that, in
less than 3 s: run it on a worker's host.`,
		Example: `  rackweave plan --racks 48 --workers 40 --link 100Gb/s --core 4:1 --model gpt2-xl
  rackweave plan --racks 8 --pods 2 --workers 16 --link 25Gb/s --core 4:1 --pod-core 8:1 --model bert-large --compute 120ms
  rackweave plan --workers 120 --link 56Gb/s --aggregator-link 560Gb/s --memory 90GB/s --model resnet50 --compute 273ms
  rackweave plan --scale 1,2,8,32,125,250 --workers 40 --core 4:1 --model bert-large --svg figures
  rackweave plan --probe --server http://aggregator:7077 --token ADMIN --workers 16 --model bert-large
  rackweave plan --probe --cluster cluster.yaml --token ADMIN --model bert-large
  rackweave plan --probe --cluster cluster.yaml --token ADMIN --in-rack --workers 16 --model bert-large
  rackweave plan --here --workers 40 --link 100Gb/s --model bert-large --compute 300ms
  rackweave plan --table1
  rackweave plan --table2 --link 56Gb/s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.checkProbe(cmd.Flags()), f.checkValues(cmd.Flags())); err != nil {
				return err
			}
			if f.probe {
				return f.probed(cmd.Context(), cmd.OutOrStdout())
			}
			if f.here {
				return f.planHere(cmd.OutOrStdout())
			}
			if f.table1 {
				return printTable1(cmd.OutOrStdout())
			}
			if len(f.scale) > 0 {
				return f.printScale(cmd.OutOrStdout())
			}
			if f.table2 {
				return f.printTable2(cmd.OutOrStdout())
			}
			return f.run(cmd.OutOrStdout())
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.racks, "racks", 1, "racks, each with an aggregator")
	fl.IntVar(&f.workers, "workers", 8, "workers in each rack")
	fl.IntVar(&f.pods, "pods", 0, "pods that the racks are in (0: none)")
	fl.StringVar(&f.link, "link", "100Gb/s", "rate of a worker's NIC, each direction")
	fl.StringVar(&f.aggregatorLink, "aggregator-link", "",
		"rate of all NICs of an aggregator together (default: as many as its workers have)")
	fl.StringVar(&f.core, "core", "1:1", "oversubscription of a rack's uplink: its workers' NICs over the uplink")
	fl.StringVar(&f.podCore, "pod-core", "1:1", "oversubscription of a pod's uplink: its racks' uplinks over it")
	fl.StringVar(&f.spine, "spine", "", "rate of the NICs of an aggregator at the spine (default: there is none)")
	fl.DurationVar(&f.rackLatency, "rack-latency", 3*time.Microsecond, "one hop within a rack")
	fl.DurationVar(&f.coreLatency, "core-latency", 10*time.Microsecond, "one hop between racks")
	fl.DurationVar(&f.compute, "compute", 0, "what a step computes, to compare with (0: infinitely fast)")
	fl.StringVar(&f.outer, "outer", "", "racks train on their own and meet, such as every=24,fragments=4: the mean of their steps; a quorum is checked, not predicted")
	fl.StringVar(&f.model, "model", "resnet50", "model whose gradients to exchange")
	fl.StringVar(&f.bytes, "bytes", "", "instead of a model: a size on the wire, such as 100MB")
	fl.StringVar(&f.dtype, "dtype", "f32", "type on the wire: f32, bf16 or f16")
	fl.IntVar(&f.chunkBytes, "chunk-bytes", chunk.DefaultChunkBytes, "chunk size in bytes")
	fl.StringVar(&f.fold, "fold", "",
		"gradients that one aggregator's cores sum per second, such as 40GB/s (default: as fast as they come)")
	fl.StringVar(&f.memory, "memory", "", "memory bandwidth of one aggregator, such as 90GB/s (default: not binding)")
	fl.StringVar(&f.pcie, "pcie", "", "PCIe bandwidth of an aggregator's NICs together, each direction (default: not binding)")
	fl.Float64Var(&f.touches, "memory-touches", 2,
		"how often a gradient crosses memory: 2, or 1 where it stays in the last-level cache")
	fl.Float64Var(&f.priceWorker, "price-worker", 0, "price of a worker with its NIC, for throughput per price")
	fl.Float64Var(&f.priceAggregator, "price-aggregator", 0, "price of an aggregator")
	fl.Float64Var(&f.priceUplinkGbps, "price-uplink", 0, "price of 1 Gb/s of uplink")
	fl.BoolVar(&f.table1, "table1", false, "print Table I of the RackWeave paper beside ours, and what it leaves open")
	fl.BoolVar(&f.table2, "table2", false,
		"print Table II of the paper beside what computation and bytes allow at --link, and from which rate on communication is hidden")
	fl.IntSliceVar(&f.scale, "scale", nil, "instead of one cluster: numbers of racks, each predicted and simulated")
	fl.StringVar(&f.svgDir, "svg", "", "with --scale: directory for figures")
	fl.BoolVar(&f.here, "here", false,
		"the aggregator is this machine: read its NICs and PCIe links, measure its memory and cores, and go by these")
	fl.BoolVar(&f.probe, "probe", false, "measure the links of a cluster that runs, or this host's to an aggregator, and predict by them")
	fl.BoolVar(&f.inRack, "in-rack", false, "with --probe: this host is a worker's: measure its link to the cluster's aggregator, too")
	fl.StringVar(&f.server.Server, "server", "http://127.0.0.1:7077", "with --probe: URL of an aggregator")
	fl.StringVar(&f.clusterFile, "cluster", "", "with --probe, instead of --server: the cluster's file, whose first aggregator is asked")
	fl.StringVar(&f.server.CA, "ca", "", "with --probe: file with the certificates to trust, or sha256:FINGERPRINT, for https")
	fl.StringVar(&f.server.Token, "token", "", "with --probe: the aggregator's admin token, where it has one")
	fl.DurationVar(&f.server.Timeout, "timeout", time.Minute, "with --probe: how long to wait")
	fl.StringVar(&f.provider, "provider", "", "with --probe: transport to measure (default: the fastest that leads to other hosts)")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// parseRate reads a rate such as 100Gb/s or 12.5GB/s, in bytes per second.
func parseRate(flag, s string) (float64, error) {
	units := []struct {
		suffix string
		bytes  float64
	}{
		{"Tb/s", 1e12 / 8}, {"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6},
		{"Tbps", 1e12 / 8}, {"Gbps", 1e9 / 8}, {"Mbps", 1e6 / 8},
	}
	for _, u := range units {
		if number, ok := strings.CutSuffix(s, u.suffix); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && v > 0 && !math.IsInf(v, 0) {
				return v * u.bytes, nil
			}
			break
		}
	}
	return 0, fmt.Errorf("--%s %q is no rate: write it as 100Gb/s or 12.5GB/s", flag, s)
}

const mostRatio = 1e6 // an uplink of a millionth of its links is a mistake

// parseRatio reads an oversubscription such as 4:1.
func parseRatio(flag, s string) (float64, error) {
	number, one, ok := strings.Cut(s, ":")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || ok && one != "1" || !(v > 0) || v > mostRatio {
		return 0, fmt.Errorf("--%s %q is no oversubscription: write it as 4:1", flag, s)
	}
	return v, nil
}

// workerNIC returns the rate of a worker's link, of the slower direction.
func (f *planFlags) workerNIC() (float64, error) {
	if l := f.measured; l != nil {
		return min(l.Up.Rate, l.Down.Rate), nil
	}
	return parseRate("link", f.link)
}

// cluster turns the flags into a cluster.
func (f *planFlags) cluster() (c hierarchy.Cluster, err error) {
	c = hierarchy.Cluster{
		Racks: f.racks, Workers: f.workers, Pods: f.pods, RackLatency: f.rackLatency.Seconds(),
		CoreLatency: f.coreLatency.Seconds(),
	}
	if l := f.measured; l != nil {
		c.RackLatency = max(l.Up.Latency, l.Down.Latency).Seconds()
	}
	if c.Outer, err = hierarchy.ParseOuter(f.outer); err != nil {
		return c, err
	}
	if err := c.Outer.CheckRacks(c.Racks); err != nil {
		return c, err
	}
	if c.WorkerNIC, err = f.workerNIC(); err != nil {
		return c, err
	}
	c.AggregatorNIC = c.WorkerNIC * float64(f.workers)
	for _, r := range []struct {
		flag, value string
		to          *float64
	}{{"aggregator-link", f.aggregatorLink, &c.AggregatorNIC}, {"spine", f.spine, &c.SpineNIC}, {"fold", f.fold, &c.FoldRate}} {
		if r.value == "" {
			continue
		}
		if *r.to, err = parseRate(r.flag, r.value); err != nil {
			return c, err
		}
	}
	core, err := parseRatio("core", f.core)
	if err != nil {
		return c, err
	}
	podCore, err := parseRatio("pod-core", f.podCore)
	if err != nil {
		return c, err
	}
	c.Uplink = c.WorkerNIC * float64(f.workers) / core
	if f.pods > 1 {
		c.PodUplink = c.Uplink * float64(f.racks/f.pods) / podCore
	}
	return c, c.Check()
}

// wireBytes returns the bytes of the model on the wire.
func (f *planFlags) wireBytes() (name string, bytes float64, err error) {
	d, err := chunk.ParseDType(f.dtype)
	if err != nil {
		return "", 0, err
	}
	m, err := models.Get(f.model)
	if f.bytes != "" {
		m, err = models.FromBytes(f.bytes, d)
	}
	if err != nil {
		return "", 0, err
	}
	return m.Name, float64(m.Params()) * float64(d.Size()), nil
}

// planResult is what `rackweave plan --json` prints.
type planResult struct {
	Model        string                 `json:"model"`
	Bytes        float64                `json:"bytes"`
	Best         string                 `json:"best"`
	Compute      float64                `json:"compute_seconds"`
	Shapes       []planShape            `json:"shapes"`
	OneRack      hierarchy.Capacity     `json:"workers_per_aggregator"`
	StepsPerCost float64                `json:"steps_per_second_and_price,omitempty"`
	InRack       *measuredLink          `json:"in_rack,omitempty"`
	Here         []limit                `json:"here,omitempty"`
	cluster      hierarchy.Cluster      `json:"-"`
	predictions  []hierarchy.Prediction `json:"-"`
}

type planShape struct {
	hierarchy.Prediction
	Unfit string             `json:"unfit,omitempty"`
	Links map[string]float64 `json:"bytes_by_link,omitempty"`
}

func (f *planFlags) plan() (*planResult, error) {
	c, err := f.cluster()
	if err != nil {
		return nil, err
	}
	name, bytes, err := f.wireBytes()
	if err != nil {
		return nil, err
	}
	all, err := c.Choose(bytes, float64(f.chunkBytes))
	if err != nil {
		return nil, err
	}
	limits := hierarchy.Limits{NIC: c.AggregatorNIC, Fold: c.FoldRate}
	for _, r := range []struct {
		flag, value string
		to          *float64
	}{{"memory", f.memory, &limits.Memory}, {"pcie", f.pcie, &limits.PCIe}} {
		if r.value == "" {
			continue
		}
		if *r.to, err = parseRate(r.flag, r.value); err != nil {
			return nil, err
		}
	}
	best := all[0]
	step := max(best.Seconds, f.compute.Seconds())
	out := &planResult{Model: name, Bytes: bytes, Best: best.Name, Compute: f.compute.Seconds(), cluster: c, predictions: all}
	if out.OneRack, err = limits.Capacity(bytes, step, f.touches); err != nil {
		return nil, err
	}
	if price := f.price(&c); price > 0 {
		out.StepsPerCost = 1 / step / price
	}
	for _, p := range all {
		s := planShape{Prediction: p, Links: map[string]float64{}}
		if p.Unfit != nil {
			s.Unfit = p.Unfit.Error()
		}
		for l, bytes := range p.Loads {
			if p.Unfit == nil && bytes > 0 {
				s.Links[hierarchy.Link(l).String()] = bytes
			}
		}
		out.Shapes = append(out.Shapes, s)
	}
	return out, nil
}

func (f *planFlags) run(w io.Writer) error {
	r, err := f.plan()
	if err != nil {
		return err
	}
	if f.asJSON {
		return writeJSON(w, r)
	}
	return f.print(w, r)
}

func (f *planFlags) print(w io.Writer, r *planResult) error {
	c, best := &r.cluster, r.predictions[0]
	racks := "1 rack"
	if c.Racks > 1 {
		racks = fmt.Sprintf("%d racks", c.Racks)
	}
	fmt.Fprintf(w, "%s, %.1f MB on the wire; %s of %d workers; worker NICs %s, aggregator NICs %s", r.Model, r.Bytes/1e6, racks,
		c.Workers,
		rate(c.WorkerNIC), rate(c.AggregatorNIC))
	if c.Racks > 1 {
		fmt.Fprintf(w, ", uplinks %s", rate(c.Uplink))
	}
	fmt.Fprintf(w, "\nBytes are per step, on the busiest link of a kind, each direction.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "shape\ttime\tof that fill\tbound by\taggregator NIC\track uplink\tpod uplink\t")
	for _, p := range r.predictions {
		if p.Unfit != nil {
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", p.Name, seconds(p.Seconds), seconds(p.Fill), p.Binding,
			megabytes(p.Loads[hierarchy.AggregatorNIC]), megabytes(p.Loads[hierarchy.Uplink]),
			megabytes(p.Loads[hierarchy.PodUplink]))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nfastest: %s, %s a step, bound by the %s", best.Name, seconds(best.Seconds), best.Binding)
	if f.compute > 0 {
		if exposed := best.Seconds - f.compute.Seconds(); exposed > 0 {
			fmt.Fprintf(w, "; at least %s of it cannot hide behind %v of compute", seconds(exposed), f.compute)
		} else {
			fmt.Fprintf(w, "; it can hide behind %v of compute", f.compute)
		}
	}
	if f.compute > 0 || f.here {
		fmt.Fprintf(w, "\none aggregator carries %d workers at a step of %s, bound by %s", r.OneRack.Workers,
			seconds(max(best.Seconds, f.compute.Seconds())), r.OneRack.Binding)
	}
	if r.StepsPerCost > 0 {
		fmt.Fprintf(w, "\n%.3g steps per second and unit of price", r.StepsPerCost)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func rate(bytes float64) string { return fmt.Sprintf("%.4g Gb/s", bytes*8/1e9) }

func seconds(s float64) string {
	return time.Duration(s * 1e9).Round(time.Microsecond).String()
}

func megabytes(bytes float64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MB", bytes/1e6)
}

func printTable1(w io.Writer) error {
	fmt.Fprint(w, `Table I of the RackWeave paper: bandwidth of the busiest NIC, in Gb/s, that hides communication
behind compute.
The paper gives no number of workers, sizes or compute times. Each row has one unknown, U = 2M/T: what a NIC carries, in and out,
that moves one model per step. With 8 workers the columns are 7 U, 1.75 U, 8 U and U, rounded: no other number of workers fits.

`)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "network\tCC paper\tours\tCS paper\tours\tNCC paper\tours\tNCS paper\tours\tU\tour M\timplied T\t")
	for _, r := range hierarchy.Table1() {
		u, _ := r.Unit()
		m, err := models.Get(r.Model)
		if err != nil {
			return err
		}
		bytes := float64(m.Params()) * 4
		step := 2 * bytes * 8 / (u * 1e9)
		fmt.Fprintf(t, "%s\t", r.Network)
		for p := hierarchy.CC; p <= hierarchy.NCS; p++ {
			fmt.Fprintf(t, "%.0f\t%.0f\t", r.Paper[p], math.Round(hierarchy.Cell(p, bytes, step)))
		}
		fmt.Fprintf(t, "%.2f\t%.1f MB\t%.0f ms\t\n", u, bytes/1e6, step*1e3)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, `
In and out are added up; a full-duplex link needs half. The table contradicts the paper's Table II: 1712 samples/s of AlexNet on
8 workers of 32 is a step of 150 ms, not 22 ms. With sizes and times published for PHub (390, 91, 38 and 194 MB; 350, 225, 100 and
16 ms) U comes out 2 to 10% higher.
`)
	return err
}
