package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/numa"
)

// modelFlags choose the model of an exchange.
type modelFlags struct {
	model, bytes, f32Bytes, dtype string
	usual                         *pflag.Flag // the one of model and bytes with a default
}

// add adds the flags. usual names the one of model and bytes that has the default value if no model and no size is given.
func (m *modelFlags) add(f *pflag.FlagSet, usual, value string) {
	f.StringVar(&m.model, "model", "", "model whose tensors to exchange: "+strings.Join(models.Names(), ", "))
	f.StringVar(&m.bytes, "bytes", "",
		"instead of a model: a size on the wire, in elements of --dtype, such as 100MB, 64MiB or 64M (as nccl-tests reads it: MiB)")
	f.StringVar(&m.f32Bytes, "f32-bytes", "",
		"instead of a model: a size in f32, whatever --dtype is, to compare element types by the same number of elements")
	f.StringVar(&m.dtype, "dtype", "f32", "type on the wire: f32, bf16 or f16")
	m.usual = f.Lookup(usual)
	m.usual.DefValue = value // for --help; read sets it if no other is given
}

// read returns the model, and its type on the wire.
func (m *modelFlags) read() (of models.Model, d chunk.DType, err error) {
	if d, err = chunk.ParseDType(m.dtype); err != nil {
		return of, d, err
	}
	if m.model == "" && m.bytes == "" && m.f32Bytes == "" {
		_ = m.usual.Value.Set(m.usual.DefValue) // a string takes every value
	}
	switch {
	case m.model != "" && m.bytes != "":
		err = errors.New("--model and --bytes are given: use one")
	case m.f32Bytes != "" && (m.model != "" || m.bytes != ""):
		err = errors.New("--f32-bytes is given beside --model or --bytes: use one")
	case m.f32Bytes != "":
		of, err = models.FromBytes(m.f32Bytes, chunk.F32)
		of.Name += " of f32"
	case m.bytes != "":
		of, err = models.FromBytes(m.bytes, d)
	default:
		of, err = models.Get(m.model)
	}
	return of, d, err
}

// planFlags describe a cluster, as people write it.
type planFlags struct {
	modelFlags
	racks, workers, pods                        int
	link, aggregatorLink, core, podCore, memory string
	compute                                     time.Duration
	compress                                    string
}

// check refuses numbers that no cluster has, and flags without effect.
func (f *planFlags) check(given *pflag.FlagSet) error {
	switch {
	case f.compute < 0:
		return fmt.Errorf("--compute %v: use a time of at least 0", f.compute)
	case given.Changed("pod-core") && f.pods == 0:
		return fmt.Errorf("--pod-core %s without pods: give their number by --pods", f.podCore)
	case given.Changed("core") && f.racks == 1:
		return fmt.Errorf("--core %s with one rack, which has no uplink: give --racks", f.core)
	}
	return nil
}

func planCommand() *cobra.Command {
	var f planFlags
	cmd := printing(&cobra.Command{
		Use:   "plan",
		Short: "Predict what a step takes on a cluster that may not exist, and which shape of reduction is fastest",
		Long: `Predict what exchanging a model's gradients takes on a cluster, for every shape in which its aggregators can reduce
among themselves, with the bytes on every link, and how many workers one aggregator carries.

A step streams, so it takes the bytes on the tightest link over its rate, and what the last chunk takes alone: a hop takes 3 µs in
a rack and 10 µs between racks. "rackweave probe" measures the links of a cluster that runs, and predicts by them.`,
		Example: `  rackweave plan --racks 48 --workers 40 --link 100Gb/s --core 4:1 --model gpt2-xl
  rackweave plan --racks 8 --pods 2 --workers 16 --link 25Gb/s --core 4:1 --pod-core 8:1 --model bert-large --compute 120ms
  rackweave plan --workers 4 --link 1Gb/s --model resnet50 --compress int8
  rackweave plan --workers 120 --link 56Gb/s --aggregator-link 560Gb/s --memory 90GB/s --model resnet50 --compute 273ms`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		if err := f.check(cmd.Flags()); err != nil {
			return nil, nil, err
		}
		c, err := f.cluster()
		if err != nil {
			return nil, nil, err
		}
		r, err := f.plan(c)
		return r, func(w io.Writer) { r.print(w, c) }, err
	})
	fl := cmd.Flags()
	fl.IntVar(&f.racks, "racks", 1, "racks, each with an aggregator")
	fl.IntVar(&f.workers, "workers", 8, "workers in each rack")
	fl.IntVar(&f.pods, "pods", 0, "pods that the racks are in, if not 0")
	fl.StringVar(&f.link, "link", "100Gb/s", "rate of a worker's NIC, each direction")
	fl.StringVar(&f.aggregatorLink, "aggregator-link", "",
		"rate of all NICs of an aggregator together (default: as many as its workers have)")
	fl.StringVar(&f.core, "core", "1:1", "oversubscription of a rack's uplink: its workers' NICs over the uplink")
	fl.StringVar(&f.podCore, "pod-core", "1:1", "oversubscription of a pod's uplink: its racks' uplinks over it")
	fl.StringVar(&f.memory, "memory", "", "memory bandwidth of one aggregator, such as 90GB/s (default: not binding)")
	fl.StringVar(&f.compress, "compress", "", "codecs of gradients and answers, such as int8 or sign/int8 (default: none)")
	fl.DurationVar(&f.compute, "compute", 0, "what a step computes, to compare with; if 0, infinitely fast")
	f.modelFlags.add(fl, "model", "resnet50")
	return cmd
}

// cluster turns the flags into a cluster.
func (f *planFlags) cluster() (*planner.Cluster, error) {
	c := &planner.Cluster{Racks: f.racks, Workers: f.workers, Pods: f.pods, RackLatency: 3e-6, CoreLatency: 10e-6}
	var core, podCore float64
	for _, v := range []struct {
		flag, value string
		to          *float64
		parse       func(string) (float64, error)
	}{
		{"link", f.link, &c.WorkerNIC, planner.ParseRate}, {"aggregator-link", f.aggregatorLink, &c.AggregatorNIC, planner.ParseRate},
		{"memory", f.memory, &c.Memory, planner.ParseRate}, {"core", f.core, &core, planner.ParseRatio},
		{"pod-core", f.podCore, &podCore, planner.ParseRatio},
	} {
		if v.value == "" {
			continue
		}
		var err error
		if *v.to, err = v.parse(v.value); err != nil {
			return nil, fmt.Errorf("--%s %w", v.flag, err)
		}
	}
	nics := c.WorkerNIC * float64(f.workers)
	c.AggregatorNIC = cmp.Or(c.AggregatorNIC, nics)
	c.Uplink = nics / core
	if f.pods > 1 {
		c.PodUplink = c.Uplink * float64(f.racks/f.pods) / podCore
	}
	return c, c.Check()
}

// planned is the output of `rackweave plan --json`.
type planned struct {
	Model   string               `json:"model"`
	Bytes   float64              `json:"bytes"`
	Codecs  *plannedCodecs       `json:"codecs,omitempty"`
	Best    string               `json:"best"`
	Compute float64              `json:"compute_seconds"`
	Shapes  []planner.Prediction `json:"shapes"`
	OneRack struct {
		Workers int
		Binding string
	} `json:"workers_per_aggregator"`
}

// plannedCodecs holds the bytes of a worker's gradients and answers in a step, compressed.
type plannedCodecs struct {
	Names     string  `json:"names"`
	Gradients float64 `json:"gradient_bytes"`
	Answers   float64 `json:"answer_bytes"`
}

// codecsOf returns what codecs make of a model, or nil without any.
func codecsOf(text string, m models.Model, d chunk.DType) (*plannedCodecs, error) {
	p, err := codec.ParsePair(text, true)
	switch {
	case err != nil || p == codec.Pair{}:
		return nil, err
	case d != chunk.F32:
		return nil, fmt.Errorf("--compress %s and --dtype %v: codecs shorten f32: use one of the two", text, d)
	}
	c := &plannedCodecs{Names: p.String()}
	const whole = chunk.DefaultChunkBytes / 4
	for _, t := range m.Tensors {
		c.Gradients += float64(p.Up.TensorBytes(t.Elems(), whole))
		c.Answers += float64(p.Down.TensorBytes(t.Elems(), whole))
	}
	return c, nil
}

// step returns the time of a step, which computes meanwhile.
func (r *planned) step() float64 { return max(r.Shapes[0].Seconds, r.Compute) }

func (f *planFlags) plan(c *planner.Cluster) (*planned, error) {
	m, d, err := f.read()
	if err != nil {
		return nil, err
	}
	bytes := float64(m.Params()) * float64(d.Size())
	r := &planned{Model: m.Name, Bytes: bytes, Compute: f.compute.Seconds()}
	if r.Codecs, err = codecsOf(f.compress, m, d); err != nil {
		return nil, err
	}
	if r.Codecs != nil {
		c.Coded = max(r.Codecs.Gradients, r.Codecs.Answers) / bytes
	}
	if r.Shapes, err = c.Choose(bytes, chunk.DefaultChunkBytes); err != nil {
		return nil, err
	}
	r.Best = r.Shapes[0].Shape.String()
	r.OneRack.Workers, r.OneRack.Binding = c.Capacity(bytes, r.step())
	return r, nil
}

func (r *planned) print(w io.Writer, c *planner.Cluster) {
	fmt.Fprintf(w, "%s, %.1f MB on the wire; %s of %d workers; worker NICs %s, aggregator NICs %s", r.Model, r.Bytes/1e6,
		numa.Count(c.Racks, "rack"), c.Workers, rate(c.WorkerNIC), rate(c.AggregatorNIC))
	if c.Racks > 1 {
		fmt.Fprintf(w, ", uplinks %s", rate(c.Uplink))
	}
	if r.Codecs != nil {
		fmt.Fprintf(w, "\n%s: a worker's gradients take %s, its answers %s: %.3f and %.3f of raw", r.Codecs.Names,
			megabytes(r.Codecs.Gradients), megabytes(r.Codecs.Answers), r.Codecs.Gradients/r.Bytes, r.Codecs.Answers/r.Bytes)
	}
	fmt.Fprintf(w, "\nBytes are per step, on the busiest link of a kind, each direction.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "shape\ttime\tof that fill\tbound by\taggregator NIC\track uplink\tpod uplink\t")
	for _, p := range r.Shapes {
		if p.Unfit == "" {
			fmt.Fprintf(t, "%v\t%s\t%s\t%s\t%s\t%s\t%s\t\n", p.Shape, seconds(p.Seconds), seconds(p.Fill), p.Binding,
				megabytes(p.Loads[planner.AggregatorNIC]), megabytes(p.Loads[planner.Uplink]),
				megabytes(p.Loads[planner.PodUplink]))
		}
	}
	t.Flush()
	best := &r.Shapes[0]
	fmt.Fprintf(w, "\nfastest: %v, %s a step, bound by the %s", best.Shape, seconds(best.Seconds), best.Binding)
	if r.Compute > 0 {
		if exposed := best.Seconds - r.Compute; exposed > 0 {
			fmt.Fprintf(w, "; at least %s of it cannot hide behind %s of compute", seconds(exposed), seconds(r.Compute))
		} else {
			fmt.Fprintf(w, "; it can hide behind %s of compute", seconds(r.Compute))
		}
		fmt.Fprintf(w, "\none aggregator carries %d workers at a step of %s, bound by %s", r.OneRack.Workers, seconds(r.step()),
			r.OneRack.Binding)
	}
	fmt.Fprintln(w)
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
