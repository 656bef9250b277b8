package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/lab/racks"
)

func labCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "lab", Short: "Emulate racks on this machine, with network namespaces and shaped links", Args: cobra.NoArgs}
	cmd.AddCommand(labRacksCommand(), labExchangeCommand(), labMeasureCommand())
	return cmd
}

// fabricFlags are the flags that name a fabric. Commands for the same one take the same.
func fabricFlags(cmd *cobra.Command, c *racks.Config) (complete func() error) {
	var rate, core string
	f := cmd.Flags()
	f.StringVar(&c.Name, "name", fabricName, "prefix of the network namespaces")
	f.IntVar(&c.Racks, "racks", 2, "racks")
	f.IntVar(&c.Workers, "workers", 4, "workers in each rack")
	f.StringVar(&rate, "rate", "200Mb/s", "rate of a worker's link, each direction")
	f.StringVar(&core, "core", "8:1", "oversubscription of a rack's uplink: its workers' links over the uplink")
	return func() error {
		bytes, err := parseRate("rate", rate)
		if err != nil {
			return err
		}
		c.Rate = bytes * 8
		if c.Core, err = parseRatio("core", core); err != nil {
			return err
		}
		return c.Check()
	}
}

func labRacksCommand() *cobra.Command {
	var c racks.Config
	var shape string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "racks",
		Short: "Bring up racks on this machine, with an aggregator in each, until interrupted",
		Long: `Bring up racks of workers on this machine: network namespaces with shaped links, and in each rack an aggregator, that
reduce among themselves. They stay until this command is interrupted. Run it as root.`,
		Example: `  rackweave lab racks
  rackweave lab racks --racks 4 --workers 2 --rate 100Mb/s --core 4:1 --shape ring`,
		Args: cobra.NoArgs,
	}
	complete := fabricFlags(cmd, &c)
	cmd.Flags().StringVar(&shape, "shape", "auto", "how aggregators reduce among themselves: auto, sharded, ring, chain or root")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		ctx := cmd.Context()
		if err := complete(); err != nil {
			return err
		}
		if err := racks.Probe(ctx); err != nil {
			return err
		}
		l := racks.Lab{Log: cmd.ErrOrStderr()}
		if l.Program, err = os.Executable(); err != nil {
			return err
		}
		if l.Fabric, err = racks.Up(ctx, c); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		cluster, err := l.Serve(ctx, shape)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cluster.Stop()) }()
		if asJSON {
			if err := writeJSON(cmd.OutOrStdout(), c.Hosts()); err != nil {
				return err
			}
			return cluster.Wait(ctx)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d racks of %d workers, links of %.4g Mb/s, uplinks of %.4g Mb/s\n", c.Racks, c.Workers, c.Rate/1e6,
			c.Uplink()/1e6)
		for rack := range c.Racks {
			fmt.Fprintf(cmd.OutOrStdout(), "aggregator of %s: ip netns exec %s rackweave status --server %s\n", racks.RackName(rack),
				c.Aggregator(rack).Namespace, c.URL(rack))
		}
		return cluster.Wait(ctx)
	}
	return cmd
}

func labExchangeCommand() *cobra.Command {
	var c racks.Config
	var model string
	var divisor uint64
	var asJSON bool
	l := racks.Lab{Warmup: 1}
	cmd := &cobra.Command{
		Use:   "exchange",
		Short: "Exchange a model among the workers of racks that are up",
		Example: `  rackweave lab exchange --verify
  rackweave lab exchange --racks 4 --workers 2 --model vgg19 --divisor 32 --iters 100`,
		Args: cobra.NoArgs,
	}
	complete := fabricFlags(cmd, &c)
	f := cmd.Flags()
	f.StringVar(&model, "model", "resnet50", "model to exchange")
	f.Uint64Var(&divisor, "divisor", 16, "by which the model is scaled down, as links are slow")
	f.IntVar(&l.Iters, "iters", 10, "measured steps, after one to warm up")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&l.Verify, "verify", false, "compute everything again in plain Go and compare bits")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := complete(); err != nil {
			return err
		}
		m, err := models.Get(model)
		switch {
		case err != nil:
			return err
		case divisor < 1 || l.Iters < 1:
			return fmt.Errorf("--divisor %d, --iters %d: use 1 or more of each", divisor, l.Iters)
		}
		if l.Program, err = os.Executable(); err != nil {
			return err
		}
		l.Log, l.Fabric = cmd.ErrOrStderr(), &racks.Fabric{Config: c}
		if err := l.Present(cmd.Context()); err != nil {
			return fmt.Errorf("%w: bring them up with: rackweave lab racks", err)
		}
		row, err := l.Running(cmd.Context(), m.Scaled(divisor))
		if err != nil {
			return err
		}
		if asJSON {
			return writeJSON(cmd.OutOrStdout(), row)
		}
		return racks.WriteTable(cmd.OutOrStdout(), report.ThisMachine(), []racks.Row{row})
	}
	return cmd
}

// fabricName is the default prefix of the lab's namespaces.
const fabricName = "rackweave"

// measureFlags are the flags of rackweave lab measure.
type measureFlags struct {
	study                    racks.Study
	name, rate               string
	exchange, across, replay []string // models
	cores                    []float64
	svgDir, jsonFile         string
}

func labMeasureCommand() *cobra.Command {
	var m measureFlags
	cmd := &cobra.Command{
		Use:   "measure",
		Short: "Measure exchanges and those of Gloo and MXNet on the same emulated links",
		Long: `Measure exchanges on emulated links, beside Gloo's ring and MXNet's dist_sync on the same links, and steps that compute as
long as published times say. Models are scaled down, so that a step takes seconds on links slow enough for the network, not the
machine's cores, to be what is waited for: ratios are of bytes and stay. Run it as root.`,
		Example: `  rackweave lab measure
  rackweave lab measure --models alexnet --rate 200Mb/s --divisor 8 --svg figures --json racks.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&m.name, "name", fabricName, "prefix of the network namespaces")
	f.StringVar(&m.rate, "rate", "100Mb/s", "rate of a worker's link, each direction")
	f.Uint64Var(&m.study.Divisor, "divisor", 16, "by which models are scaled down")
	f.StringSliceVar(&m.exchange, "models", []string{"alexnet", "vgg19"}, "models to exchange")
	f.Float64SliceVar(&m.cores, "core", []float64{4, 8}, "oversubscriptions of the core between two racks")
	f.StringSliceVar(&m.across, "across", []string{"resnet50"}, "models to exchange across racks")
	f.StringSliceVar(&m.replay, "replay", []string{"alexnet", "vgg19", "googlenet", "resnet50"},
		"models whose computation to replay beside the exchange")
	f.IntVar(&m.study.Lab.Iters, "iters", 5, "measured steps of each, after one to warm up")
	f.StringVar(&m.svgDir, "svg", "", "directory for figures")
	f.StringVar(&m.jsonFile, "json", "", "write the rows as JSON to this file (-: standard output)")
	return cmd
}

func (m *measureFlags) run(cmd *cobra.Command) error {
	if err := m.check(cmd); err != nil {
		return err
	}
	machine := report.ThisMachine()
	rows, err := m.measure(cmd.Context(), machine)
	if err != nil {
		return err
	}
	if m.jsonFile != "" {
		err := output(cmd, m.jsonFile, func(w io.Writer) error { return writeJSON(w, rows) })
		if err != nil || m.jsonFile == "-" {
			return err
		}
	}
	return racks.WriteTable(cmd.OutOrStdout(), machine, rows)
}

// check completes the study and reports what in it cannot be done.
func (m *measureFlags) check(cmd *cobra.Command) error {
	s := &m.study
	bytes, err := parseRate("rate", m.rate)
	if err != nil {
		return err
	}
	s.Rate = bytes * 8
	if err := checkDir(m.svgDir); err != nil {
		return err
	}
	if err := checkOutput(m.jsonFile); err != nil {
		return err
	}
	if s.Divisor < 1 || s.Lab.Iters < 1 {
		return fmt.Errorf("--divisor %d, --iters %d: use 1 or more of each", s.Divisor, s.Lab.Iters)
	}
	if err := racks.Probe(cmd.Context()); err != nil {
		return err
	}
	if s.Lab.Program, err = os.Executable(); err != nil {
		return err
	}
	s.Lab.Log, s.Lab.Warmup = cmd.ErrOrStderr(), 1
	s.Progress = func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), what) }
	return nil
}

// measure makes the study, and plots what it finds.
func (m *measureFlags) measure(ctx context.Context, machine report.Machine) ([]racks.Row, error) {
	s := &m.study
	s.Models = m.exchange
	rows, err := s.OneRack(ctx, m.name)
	if err != nil {
		return nil, err
	}
	if err := labChart(m.svgDir, "one-rack.svg", racks.Chart("Step of 8 workers in one rack", machine, rows)); err != nil {
		return nil, err
	}
	s.Models = m.across
	for _, over := range m.cores {
		more, err := s.Cores(ctx, m.name, over)
		if err != nil {
			return nil, err
		}
		title := fmt.Sprintf("Step of 2 racks of 4 workers, core %g:1", over)
		if err := labChart(m.svgDir, fmt.Sprintf("core-%g.svg", over), racks.Chart(title, machine, more)); err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	s.Models = m.replay
	replayed, err := s.Replay(ctx, m.name)
	return append(rows, replayed...), err
}

// labChart plots a chart that has something to plot, if a directory is given.
func labChart(dir, name string, c *report.Chart) error {
	if dir == "" || len(c.Series) == 0 {
		return nil
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return c.WriteSVG(f)
}
