package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/lab/racks"
)

func compressCommand(p *program) *cobra.Command {
	var c racks.Config
	l := racks.Lab{Warmup: 2}
	var rate, model string
	var divisor uint64
	var codecs []string
	var rounds int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compress",
		Short: "Measure exchanges with codecs by turns, on emulated links that bind",
		Long: `Measure exchanges with codecs by turns, on emulated links in one rack or between several, and how much faster each is than the first. A codec
is as much faster as its bytes are fewer only where links bind: at "cores busy" near 100% the machine does. Run it as root.`,
		Example: `  racks compress
  racks compress --rate 1Gb/s --workers 1 --codecs none,int8,int4,sign/int8
  racks compress --racks 2 --core 8 --codecs none,int4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			bytes, err := planner.ParseRate(rate)
			if err != nil {
				return fmt.Errorf("--rate %w", err)
			}
			c.Rate = bytes * 8
			if divisor < 1 || l.Iters < 1 || rounds < 1 || len(codecs) == 0 {
				return fmt.Errorf("--divisor %d, --iters %d, --rounds %d, --codecs %v: use 1 or more of each", divisor, l.Iters, rounds, codecs)
			}
			m, err := models.Get(model)
			if err == nil {
				err = c.Check()
			}
			if err == nil {
				err = racks.Probe(ctx)
			}
			if err != nil {
				return err
			}
			if l.Program, err = p.find(); err != nil {
				return err
			}
			l.Log = cmd.ErrOrStderr()
			if l.Fabric, err = racks.Up(ctx, c); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			got, err := l.ByCodecs(ctx, m.Scaled(divisor), codecs, rounds, func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), what) })
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(cmd.OutOrStdout(), got)
			}
			return got.WriteTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Name, "name", fabricName, "prefix of the network namespaces")
	f.IntVar(&c.Racks, "racks", 1, "racks; with several, codecs are those between them")
	f.Float64Var(&c.Core, "core", 1, "oversubscription of a rack's uplink: its workers' links over the uplink")
	f.IntVar(&c.Workers, "workers", 2, "workers of each rack")
	f.StringVar(&rate, "rate", "200Mb/s", "rate of a worker's link, each direction")
	f.StringVar(&model, "model", "resnet50", "model to exchange")
	f.Uint64Var(&divisor, "divisor", 4, "by which the model is scaled down, as links are slow")
	f.StringSliceVar(&codecs, "codecs", []string{"none", "int8", "int4"}, "codecs of gradients and answers")
	f.IntVar(&rounds, "rounds", 5, "rounds by turns")
	f.IntVar(&l.Iters, "iters", 10, "measured steps of each in a round, after two to warm up")
	f.BoolVar(&l.Verify, "verify", false, "compute everything again in plain Go and compare bits")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
