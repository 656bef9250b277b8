// Command study measures what RackWeave's policies claim. It makes tables of the documentation.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/study/learn"
	"github.com/rackweave/rackweave/bench/study/paper"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "study:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "study", Short: "Measure what RackWeave's policies claim", SilenceUsage: true, SilenceErrors: true,
	}
	cmd.AddCommand(learnCommand(), paperCommand())
	return cmd
}

func learnCommand() *cobra.Command {
	var cfg learn.Config
	cmd := &cobra.Command{
		Use:   "learn",
		Short: "Measure what synchronization policies do to learning",
		Long: `Measure what synchronization policies do to learning, in virtual time but for one study:

  policies  time to a loss under every policy, on a mixed cluster and with random stragglers
  lagtuner  the same on clusters of one to three speeds, as LagTuner was published
  momentum  the same with momentum 0.9, at a tenth of the learning rate
  switch    Strategy-Switch from 10 to 90 % and by the loss: speed-up and accuracy, over 5 folds
  racks     racks that train on their own and meet every few steps: time to a loss, and what crosses a slow core
  real      by the clock: through an aggregator over shared memory, with workers that sleep, beside the simulation

With --compress, what codecs do to learning: of digits and of a text, alike for all workers and skewed, and with Adam.

A small network learns handwritten digits. Every gradient is computed for real, on the parameters that its worker had; how long a
step takes is drawn. A cluster is the step times of its workers, "1,1,3,3"; "1,1,1,1~0.05" lets one step in twenty take five
times as long.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Log = cmd.ErrOrStderr()
			_, err := learn.Learn(cmd.Context(), cfg, cmd.OutOrStdout())
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&cfg.Compress, "compress", false, "study codecs instead of policies")
	f.StringSliceVar(&cfg.Only, "only", nil, "what to study (default: all): "+strings.Join(learn.Names(false), ", ")+
		"; with --compress "+strings.Join(learn.Names(true), ", "))
	f.IntVar(&cfg.Seeds, "seeds", 5, "runs of each kind, with seeds from 1 on")
	return cmd
}

func paperCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "paper",
		Short: "Compute the tables of docs/paper.md again, and write them there; run it in the module's root",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return paper.Rewrite("docs/paper.md") },
	}
}
