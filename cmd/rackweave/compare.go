package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

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
  rackweave bench compare --with gloo --provider tcp --bytes 100MB --workers 8
  rackweave bench compare --with gloo --provider tcp --compress int8
  rackweave bench compare --with mxnet --model resnet50 --arena
  rackweave bench compare --with gloo --sparse rows=1000000,touch=1%
  rackweave bench compare --with mxnet --sparse rows=1000000,touch=1% --optimizer sgd_mxnet`,
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
			spec := peers.Spec{Workers: ours.Workers, Bytes: ours.Bytes(), DType: b.dtype, Iters: ours.Iters, Warmup: ours.Warmup,
				Rows: ours.Rows, Seed: ours.Seed}
			run, others, err := contenders(cmd, ours, with, &spec)
			if err != nil {
				return err
			}
			c, err := peers.Alternate(cmd.Context(), run, others, spec, rounds, cmd.ErrOrStderr())
			if len(c.Contenders) == 0 {
				return err
			}
			if ours.Sparse() {
				c.Of = fmt.Sprintf("%v, optimizer %s", ours.Rows, ours.Optimizer)
			}
			// What was measured before an interrupt or a failure is printed, and the error after it.
			c.Machine, c.Note = report.ThisMachine(), report.NoteFor(c.Contenders[0].Transport) // not the spec's, which may say auto
			return errors.Join(err, printReport(cmd, jsonFile, &c, c.WriteTable))
		},
	}
	b.add(cmd, "bytes", "100MB")
	cmd.Flags().Lookup("workers").Usage = "workers, one number"
	cmd.Flags().StringSliceVar(&with, "with", peers.Names, "libraries to compare with; or mxnet: kvstores, both in the framework")
	cmd.Flags().IntVar(&rounds, "rounds", 5, "rounds of alternating runs")
	cmd.Flags().StringVar(&jsonFile, "json", "", "write the comparison as JSON to this file (-: standard output)")
	return cmd
}

// contenders returns our side of a comparison and the others. With mxnet our side goes through the framework, tensor by tensor.
func contenders(cmd *cobra.Command, ours bench.Spec, with []string, spec *peers.Spec) (peers.Ours, []*peers.Peer, error) {
	if ours.Sparse() || !slices.Contains(with, "mxnet") {
		others, err := peers.ByName(with)
		if ours.Sparse() {
			others, err = peers.OfRows(with, ours.Optimizer)
		}
		if err != nil {
			return nil, nil, err
		}
		runner, err := newRunner(cmd)
		if err != nil {
			return nil, nil, err
		}
		runner.Started, runner.Progress = nil, nil
		return func(ctx context.Context) (report.Times, error) { return bench.Times(runner.Run(ctx, ours)) }, others, nil
	}
	if len(with) > 1 {
		return nil, nil, fmt.Errorf("--with %s: compare mxnet by itself: both sides run in the framework then", strings.Join(with, ","))
	}
	if ours.Compress != "" {
		return nil, nil, errors.New("--compress and --with mxnet: the framework exchanges f32 there: use one of the two")
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	for _, t := range ours.Model.Tensors {
		spec.Tensors = append(spec.Tensors, 4*t.Elems())
	}
	through := peers.Through(program, ours.Arena)
	if err := through.Probe(cmd.Context()); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (report.Times, error) { return through.Run(ctx, *spec) }, []*peers.Peer{peers.MXNet(0)}, nil
}
