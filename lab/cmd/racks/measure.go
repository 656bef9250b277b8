package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/lab/racks"
)

// measureFlags are the flags of racks measure.
type measureFlags struct {
	study                racks.Study
	rate, only, jsonFile string
	again                bool
}

func measureCommand(p *program) *cobra.Command {
	var m measureFlags
	cmd := &cobra.Command{
		Use:   "measure",
		Short: "Measure exchanges and those of Gloo and MXNet on the same emulated links",
		Long: `Measure exchanges on emulated links, beside Gloo's ring and MXNet's dist_sync on the same links, and steps that compute as
long as published times say. Models are scaled down, so that a step takes seconds on links slow enough for the network, not the
machine's cores, to be what is waited for: ratios are of bytes and stay. Run it as root.

What is measured goes into the file of --json, exchange by exchange. The next run with that file measures what is missing, failed or
is void because the machine was busy.`,
		Example: `  racks measure
  racks measure --models alexnet --rate 200Mb/s --divisor 8 --json racks.json
  racks measure --json racks.json --only 'sharded|flat'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd, *p) },
	}
	f, s := cmd.Flags(), &m.study
	f.StringVar(&s.Name, "name", fabricName, "prefix of the network namespaces")
	f.StringVar(&m.rate, "rate", "100Mb/s", "rate of a worker's link, each direction")
	f.Uint64Var(&s.Divisor, "divisor", 16, "by which models are scaled down")
	f.StringSliceVar(&s.OneRack, "models", []string{"alexnet", "vgg19"}, "models to exchange")
	f.Float64SliceVar(&s.Cores, "core", []float64{4, 8}, "oversubscriptions of the core between racks")
	f.StringSliceVar(&s.Across, "across", []string{"resnet50"}, "models to exchange across racks")
	f.StringSliceVar(&s.Replay, "replay", []string{"alexnet", "vgg19", "googlenet", "resnet50"},
		"models whose computation to replay beside the exchange")
	f.IntVar(&s.Iters, "iters", 5, "measured steps of each, after one to warm up")
	f.StringVar(&m.only, "only", "", "regular expression: measure only what is named so, as progress names it")
	f.BoolVar(&m.again, "again", false, "measure anew what the file of --json has")
	f.StringVar(&m.jsonFile, "json", "", "keep what is measured as JSON in this file (-: print it)")
	return cmd
}

func (m *measureFlags) run(cmd *cobra.Command, p program) error {
	if err := m.check(cmd, p); err != nil {
		return err
	}
	rec, err := m.record()
	if err != nil {
		return err
	}
	if err := m.study.Run(cmd.Context(), rec, func() error { return m.save(rec) }); err != nil {
		return err
	}
	if m.jsonFile == "-" {
		return writeJSON(cmd.OutOrStdout(), rec)
	}
	out := cmd.OutOrStdout()
	if err := racks.WriteTable(out, rec.Machine, rec.Rows); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if n := racks.WriteClaims(out, racks.Claims(rec.Rows)); n > 0 {
		return fmt.Errorf("%d claims do not hold", n)
	}
	return nil
}

// check completes the study and reports what in it cannot be done.
func (m *measureFlags) check(cmd *cobra.Command, p program) error {
	s := &m.study
	bytes, err := planner.ParseRate(m.rate)
	if err != nil {
		return fmt.Errorf("--rate %w", err)
	}
	s.Rate = bytes * 8
	if s.Divisor < 1 || s.Iters < 1 {
		return fmt.Errorf("--divisor %d, --iters %d: use 1 or more of each", s.Divisor, s.Iters)
	}
	if m.only != "" {
		if s.Only, err = regexp.Compile(m.only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
	}
	if err := racks.Probe(cmd.Context()); err != nil {
		return err
	}
	if s.Lab.Program, err = p.find(); err != nil {
		return err
	}
	s.Lab.Log, s.Lab.Warmup = cmd.ErrOrStderr(), 1
	s.Progress = func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), what) }
	return nil
}

// record returns what the file has of the same study on the same machine, or an empty record.
func (m *measureFlags) record() (*racks.Record, error) {
	rec := &racks.Record{Machine: report.ThisMachine(), Settings: m.study.Settings}
	if m.jsonFile == "" || m.jsonFile == "-" || m.again {
		return rec, nil
	}
	text, err := os.ReadFile(m.jsonFile)
	if errors.Is(err, os.ErrNotExist) {
		return rec, nil
	}
	var had racks.Record
	if err == nil {
		err = json.Unmarshal(text, &had)
	}
	if err != nil {
		return nil, fmt.Errorf("--json %s: %w: remove it, or begin anew with --again", m.jsonFile, err)
	}
	if had.Settings != rec.Settings || had.Machine.String() != rec.Machine.String() {
		return nil, fmt.Errorf("--json %s is of %s with %+v, this is %s with %+v: name another file, or begin anew with --again",
			m.jsonFile, had.Machine, had.Settings, rec.Machine, rec.Settings)
	}
	for i := range had.Rows {
		had.Rows[i].Fabric.Name = m.study.Name
	}
	return &had, nil
}

func (m *measureFlags) save(rec *racks.Record) error {
	if m.jsonFile == "" || m.jsonFile == "-" {
		return nil
	}
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(m.jsonFile, append(text, '\n'), 0o644)
}
