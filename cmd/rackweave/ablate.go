package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench"
	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
)

func ablateCommand() *cobra.Command {
	cfg := bench.AblateConfig{Spec: bench.Spec{
		Procs: true, DType: chunk.F32, Optimizer: "sgd_mxnet", Hyper: map[string]float64{"momentum": 0.9}, Iters: 1, Seed: 1,
	}}
	var to study
	var bytes string
	cmd := &cobra.Command{
		Use:   "ablate",
		Short: "Measure what the design claims, each part against its alternative, and plot it",
		Long: `Measure what the design claims, each part against its alternative, and plot it:

  chunk-size  exchanges with chunks of 4 KiB to 4 MiB
  tall-wide   a chunk is one thread's, or all threads share it and meet after each
  fused       sum and optimizer in one pass over memory, or the sum first
  order       all gradients summed at once in rank order, or each added when it arrives; and which of the two keeps the bits
  pinned      the aggregator's loops pinned to cores, or floating

Alternatives take turns, in rounds; medians are printed. It takes two or three minutes.`,
		Example: `  rackweave bench ablate --svg figures
  rackweave bench ablate --only fused,order --json -
  rackweave bench ablate --only chunk-size --provider tcp --bytes 100MB --rounds 9`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Spec.Model, err = models.FromBytes(bytes, cfg.Spec.DType); err != nil {
				return err
			}
			if err := cfg.Check(); err != nil {
				return err
			}
			if err := to.check(); err != nil {
				return err
			}
			runner, err := newRunner(cmd)
			if err != nil {
				return err
			}
			all, err := runner.Ablate(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return to.write(cmd, &all)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Only, "only", nil, "what to measure (default: all): "+strings.Join(bench.AblationNames(), ", "))
	f.IntVar(&cfg.Rounds, "rounds", 5, "rounds, of which the median counts")
	f.BoolVar(&cfg.Quick, "quick", false, "measure next to nothing, to see that it works: the numbers say little")
	f.IntVar(&cfg.Spec.Workers, "workers", 4, "workers of the exchanges")
	f.StringVar(&cfg.Spec.Provider, "provider", "auto", "transport of the exchanges: auto, shm, tcp or ibv")
	f.StringVar(&bytes, "bytes", "32MB", "size of the exchanges' gradients")
	to.flags(f, "NAME.svg")
	return cmd
}
