package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/lab/racks"
)

func labCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "lab", Short: "Emulate racks on this machine, with network namespaces and shaped links", Args: cobra.NoArgs}
	cmd.AddCommand(labMeasureCommand())
	return cmd
}

// fabricName is the default prefix of the lab's namespaces.
const fabricName = "rackweave"

func labMeasureCommand() *cobra.Command {
	var s racks.Study
	var name, rate, svgDir, jsonFile string
	var replay []string
	cmd := &cobra.Command{
		Use:   "measure",
		Short: "Measure exchanges and those of Gloo and MXNet on the same emulated links",
		Long: `Measure exchanges on emulated links, beside Gloo's ring and MXNet's dist_sync on the same links, and steps that compute as
long as published times say. Models are scaled down, so that a step takes seconds on links slow enough for the network, not the
machine's cores, to be what is waited for: ratios are of bytes and stay. Run it as root.`,
		Example: `  rackweave lab measure
  rackweave lab measure --models alexnet --rate 200Mb/s --divisor 8 --svg figures --json racks.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bytes, err := parseRate("rate", rate)
			if err == nil {
				s.Rate = bytes * 8
				err = checkDir(svgDir)
			}
			if err == nil {
				err = checkOutput(jsonFile)
			}
			if err == nil && s.Divisor < 1 {
				err = fmt.Errorf("--divisor %d: use 1 or more", s.Divisor)
			}
			if err == nil && s.Lab.Iters < 1 {
				err = fmt.Errorf("--iters %d: use 1 or more", s.Lab.Iters)
			}
			if err == nil {
				err = racks.Probe(cmd.Context())
			}
			if err != nil {
				return err
			}
			if s.Lab.Program, err = os.Executable(); err != nil {
				return err
			}
			s.Lab.Log, s.Lab.Warmup = cmd.ErrOrStderr(), 1
			s.Progress = func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), what) }
			rows, err := s.OneRack(cmd.Context(), name)
			if err != nil {
				return err
			}
			machine := report.ThisMachine()
			if err := labChart(svgDir, "one-rack.svg", racks.Chart("Step of 8 workers in one rack", machine, rows)); err != nil {
				return err
			}
			s.Models = replay
			replayed, err := s.Replay(cmd.Context(), name)
			if err != nil {
				return err
			}
			rows = append(rows, replayed...)
			if jsonFile != "" {
				err := output(cmd, jsonFile, func(w io.Writer) error { return writeJSON(w, rows) })
				if err != nil || jsonFile == "-" {
					return err
				}
			}
			return racks.WriteTable(cmd.OutOrStdout(), machine, rows)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", fabricName, "prefix of the network namespaces")
	f.StringVar(&rate, "rate", "100Mb/s", "rate of a worker's link, each direction")
	f.Uint64Var(&s.Divisor, "divisor", 16, "by which models are scaled down")
	f.StringSliceVar(&s.Models, "models", []string{"alexnet", "vgg19"}, "models to exchange")
	f.StringSliceVar(&replay, "replay", []string{"alexnet", "vgg19", "googlenet", "resnet50"},
		"models whose computation to replay beside the exchange")
	f.IntVar(&s.Lab.Iters, "iters", 5, "measured steps of each, after one to warm up")
	f.StringVar(&svgDir, "svg", "", "directory for figures")
	f.StringVar(&jsonFile, "json", "", "write the rows as JSON to this file (-: standard output)")
	return cmd
}

func labChart(dir, name string, c *report.Chart) error {
	if dir == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return c.WriteSVG(f)
}
