package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/data"
	"github.com/rackweave/rackweave/bench/study/learn"
)

func learnCommand() *cobra.Command {
	var cfg study.Config
	var jsonFile string
	var compress, byData bool
	cmd := &cobra.Command{
		Use:   "learn",
		Short: "Measure what synchronization policies, codecs, or ways to deal rows do to learning",
		Long: `Measure what synchronization policies do to learning, in virtual time but for one study:

  policies  time to a loss under every policy, on a mixed cluster and with random stragglers
  lagtuner  the same on clusters of one to three speeds, as LagTuner was published
  momentum  the same with momentum 0.9, at a tenth of the learning rate
  switch    Strategy-Switch from 10 to 90 % and by the loss: speed-up and accuracy, over 5 folds
  racks     racks that train on their own and meet every few steps: time to a loss, and what crosses a slow core
  real      by the clock: through an aggregator over shared memory, with workers that sleep, beside the simulation

A small network learns handwritten digits. Every gradient is computed for real, on the parameters that its worker had; how long a
step takes is drawn. A cluster is the step times of its workers, "1,1,3,3"; "1,1,1,1~0.05" lets one step in twenty take five
times as long.

With --compress, what codecs do to learning: accuracy, and steps and bytes to a loss, beside f32 of the same seed:

  digits, digits-skewed  handwritten digits; skewed, each worker has two or three of them
  text, text-skewed      a small transformer predicts the next letter; skewed, each worker reads its own quarter of the text
  text-adam              the same with Adam
  ace, ace-skewed        ACE-Sync's Table 1 as relations: beside f32, top-k, infrequent rounds, itself without its parts, and greedy
  tight                  the two laws of automatic compression within few bytes

CODEC/ANSWERS shortens answers too, and auto:… chooses codecs. With raw=N, the first N steps are without a codec. With every=N or
drift=D, workers make local steps between rounds: N, or as many as keep them within D of each other. Where several learning rates
are named, each way takes its best.

With --data, what ways to deal rows do to it: mean and variance of accuracy and loss beside random shards of the same seed:

  full-sync, full-async, full-slow                    the digits, in step, asynchronous, and with one worker three times slower
  imbalanced-sync, imbalanced-async, imbalanced-slow  the same with few rows of three classes
  speed                                               time of an epoch with shards, with a queue, and with sizes by speed
  real                                                the same by the clock, through an aggregator, with workers that sleep

The full- studies take half of the seeds, speed at most 20, and real one.`,
		Example: `  rackweave bench learn --only policies,racks
  rackweave bench learn --compress --only digits --seeds 20
  rackweave bench learn --data --only imbalanced-slow,speed --seeds 100
  rackweave bench learn --compress --json compress.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(jsonFile); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if jsonFile == "-" {
				out = io.Discard
			}
			cfg.Log = cmd.ErrOrStderr()
			group := &learn.Policies
			if compress {
				group = &learn.Codecs
			} else if byData {
				group = &data.Ways
			}
			studies, err := group.Run(cmd.Context(), cfg, out)
			if err != nil || jsonFile == "" {
				return err
			}
			return output(cmd, jsonFile, func(w io.Writer) error { return writeJSON(w, studies) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&compress, "compress", false, "study codecs instead of policies")
	f.BoolVar(&byData, "data", false, "study ways to deal rows instead of policies")
	cmd.MarkFlagsMutuallyExclusive("compress", "data")
	f.StringSliceVar(&cfg.Only, "only", nil, "what to study (default: all): "+strings.Join(learn.Policies.Names(), ", ")+
		"; with --compress "+strings.Join(learn.Codecs.Names(), ", ")+"; with --data "+strings.Join(data.Ways.Names(), ", "))
	f.IntVar(&cfg.Seeds, "seeds", 5, "runs of each kind, with seeds from 1 on")
	f.StringVar(&jsonFile, "json", "", "write the result as JSON to this file (-: standard output)")
	return cmd
}
