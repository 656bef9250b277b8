package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench"
	"github.com/rackweave/rackweave/bench/peers"
	"github.com/rackweave/rackweave/bench/report"
)

func compareCommand() *cobra.Command {
	var b benchFlags
	var with []string
	var rounds int
	var jsonFile string
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Do the same exchange with other libraries on this machine, by turns, and print the ratios",
		Example: `  rackweave bench compare --with gloo,mpi
  rackweave bench compare --with gloo --provider tcp --bytes 100MB --workers 8`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			specs, err := b.complete()
			if err == nil {
				err = checkOutput(jsonFile)
			}
			if err != nil {
				return err
			}
			if len(specs) > 1 {
				return fmt.Errorf("workers %v: a comparison is of one number: use one", b.workers)
			}
			ours := specs[0]
			others, err := peers.ByName(with)
			if err != nil {
				return err
			}
			runner, err := newRunner(cmd)
			if err != nil {
				return err
			}
			runner.Started, runner.Progress = nil, nil
			spec := peers.Spec{Workers: ours.Workers, Bytes: ours.Bytes(), DType: b.dtype, Iters: ours.Iters, Warmup: ours.Warmup}
			bar := report.NewProgress(cmd.ErrOrStderr(), "compare", peers.Steps(others, rounds))
			c, err := peers.Alternate(cmd.Context(), func(ctx context.Context) (report.Times, error) {
				return bench.Times(runner.Run(ctx, ours))
			}, others, spec, rounds, bar)
			bar.Close()
			if err != nil {
				return err
			}
			c.Machine, c.Note = report.ThisMachine(), report.NoteFor(c.Contenders[0].Transport) // not the spec's, which may say auto
			if jsonFile != "" {
				if err := output(cmd, jsonFile, func(w io.Writer) error { return writeJSON(w, &c) }); err != nil || jsonFile == "-" {
					return err
				}
			}
			return c.WriteTable(cmd.OutOrStdout())
		},
	}
	b.add(cmd, "bytes", "100MB")
	cmd.Flags().Lookup("workers").Usage = "workers, one number"
	cmd.Flags().StringSliceVar(&with, "with", peers.Names, "libraries to compare with")
	cmd.Flags().IntVar(&rounds, "rounds", 5, "rounds of alternating runs")
	cmd.Flags().StringVar(&jsonFile, "json", "", "write the comparison as JSON to this file (-: standard output)")
	return cmd
}
