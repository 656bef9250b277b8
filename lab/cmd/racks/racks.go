package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/lab/racks"
)

// fabricName is the default prefix of the lab's namespaces.
const fabricName = "rackweave"

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
		bytes, err := planner.ParseRate(rate)
		if err != nil {
			return fmt.Errorf("--rate %w", err)
		}
		c.Rate = bytes * 8
		if c.Core, err = planner.ParseRatio(core); err != nil {
			return fmt.Errorf("--core %w", err)
		}
		return c.Check()
	}
}

func upCommand(p *program) *cobra.Command {
	var c racks.Config
	var shape string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring up racks on this machine, with an aggregator in each, until interrupted",
		Long: `Bring up racks of workers on this machine: network namespaces with shaped links, and in each rack an aggregator, that
reduce among themselves. They stay until this command is interrupted. Run it as root.`,
		Example: `  racks up
  racks up --racks 4 --workers 2 --rate 100Mb/s --core 4:1 --shape ring`,
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
		if l.Program, err = p.find(); err != nil {
			return err
		}
		if l.Fabric, err = racks.Up(ctx, c); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		cluster, err := l.Serve(context.WithoutCancel(ctx), shape) // Stop ends them when ctx is interrupted
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
			fmt.Fprintf(cmd.OutOrStdout(), "aggregator of %s: %s\n", racks.RackName(rack),
				strings.Join(c.StatusCommand("rackweave", rack), " "))
		}
		return cluster.Wait(ctx)
	}
	return cmd
}

func exchangeCommand(p *program) *cobra.Command {
	var c racks.Config
	var model string
	var divisor uint64
	var asJSON bool
	var wait time.Duration
	l := racks.Lab{Warmup: 1}
	cmd := &cobra.Command{
		Use:   "exchange",
		Short: "Exchange a model among the workers of racks that are up",
		Example: `  racks exchange --verify
  racks exchange --racks 4 --workers 2 --model vgg19 --divisor 32 --iters 100`,
		Args: cobra.NoArgs,
	}
	complete := fabricFlags(cmd, &c)
	f := cmd.Flags()
	f.StringVar(&model, "model", "resnet50", "model to exchange")
	f.Uint64Var(&divisor, "divisor", 16, "by which the model is scaled down, as links are slow")
	f.IntVar(&l.Iters, "iters", 10, "measured steps, after one to warm up")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&l.Verify, "verify", false, "compute everything again in plain Go and compare bits")
	waitFlag(cmd, &wait)
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
		if l.Program, err = p.find(); err != nil {
			return err
		}
		l.Log, l.Fabric = cmd.ErrOrStderr(), &racks.Fabric{Config: c}
		if err := within(cmd.Context(), wait, l.Answers); err != nil {
			return fmt.Errorf("%w: bring them up with: racks up", err)
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

func statusCommand(p *program) *cobra.Command {
	c := racks.Config{Racks: 1, Workers: 1}
	var rack int
	var wait time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of an aggregator of racks that are up, once a job runs there",
		Example: `  racks status
  racks status --rack 1 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rack < 0 {
				return fmt.Errorf("--rack %d: racks count from 0", rack)
			}
			program, err := p.find()
			if err != nil {
				return err
			}
			l := racks.Lab{Fabric: &racks.Fabric{Config: c}, Program: program}
			err = within(cmd.Context(), wait, func(ctx context.Context) error { return l.Reduces(ctx, rack) })
			if err != nil {
				return fmt.Errorf("%w: bring racks up with racks up, and run racks exchange meanwhile", err)
			}
			var flags []string
			if asJSON {
				flags = append(flags, "--json")
			}
			argv := l.StatusCommand(program, rack, flags...)
			show := exec.CommandContext(cmd.Context(), argv[0], argv[1:]...)
			show.Stdout, show.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return show.Run()
		},
	}
	cmd.Flags().StringVar(&c.Name, "name", fabricName, "prefix of the network namespaces")
	cmd.Flags().IntVar(&rack, "rack", 0, "rack whose aggregator to ask")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	waitFlag(cmd, &wait)
	return cmd
}

func waitFlag(cmd *cobra.Command, d *time.Duration) {
	cmd.Flags().DurationVar(d, "wait", 30*time.Second, "how long to wait for what another command brings up")
}

// within waits for something at most so long.
func within(ctx context.Context, d time.Duration, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return wait(ctx)
}
