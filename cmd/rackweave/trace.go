package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/timeline"
	"github.com/rackweave/rackweave/client"
)

func traceCommand() *cobra.Command {
	var cfg client.Config
	var during time.Duration
	var events int
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Write a timeline of a running job's steps, waits, folds and answers, and sum up where each worker's time goes",
		Long: `Write a timeline of a running job for Perfetto (https://ui.perfetto.dev) or chrome://tracing, and print where each worker's
time goes, in ms a step: until its first gradient comes (compute), until its last one does (wire), until the others' are there
or the policy lets it go on (wait), and until it has its answers (aggregation). All times are of the aggregator's clock.
The late workers of a synchronous job are compared with each step's first. A message on its way counts as compute; gradients
that leave as they are computed, or that wait for room until others' are there, count as wire.`,
		Example: `  rackweave trace --job resnet --token-file token --for 2s --out trace.json
  rackweave trace --server http://aggregator:7077 --job resnet`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(file); err != nil {
				return err
			}
			trace, err := client.Trace(cmd.Context(), cfg, during, events)
			if err != nil {
				return err
			}
			t := timeline.New(trace)
			if file != "" {
				if err := output(cmd, file, t.WriteJSON); err != nil {
					return err
				}
			}
			if trace.Lost > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "the first %d events are lost: use a shorter --for or more --events\n", trace.Lost)
			}
			if file == "-" {
				return nil
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), t.Shares())
			}
			return t.WriteTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Server, "server", "http://127.0.0.1:7077", "URL of the aggregator")
	jobFlag(cmd, &cfg.Job)
	accessFlags(cmd, &cfg.CA, &cfg.Token, &cfg.Insecure, "the job's token", jobsToken)
	f.DurationVar(&during, "for", time.Second, "how long")
	f.IntVar(&events, "events", 0, "the most events that each lane keeps, the last ones; if 0, the aggregator's default")
	f.BoolVar(&asJSON, "json", false, "print JSON: the sums over all steps, by worker")
	f.StringVar(&file, "out", "", "write the timeline to this file, as JSON (-: standard output)")
	return cmd
}
