package main

import (
	"fmt"
	"io"
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
	cmd := printing(&cobra.Command{
		Use:   "trace",
		Short: "Write a timeline of a running job's steps, waits, folds and answers, and sum up where each worker's time goes",
		Long: `Write a timeline of a running job for Perfetto (https://ui.perfetto.dev) or chrome://tracing, and print where each worker's
time goes, in ms a step: until its first gradient comes (compute), until its last one does (wire), until the others' are there
or the policy lets it go on (wait), and until it has its answers (aggregation). All times are of the aggregator's clock.
The timeline also has the codec and the bytes of each gradient and answer.
The late workers of a synchronous job are compared with each step's first. A message on its way counts as compute; gradients
that leave as they are computed, or that wait for room until others' are there, count as wire.`,
		Example: `  rackweave trace --job resnet --token-file token --for 2s --out trace.json
  rackweave trace --server http://aggregator:7077 --job resnet`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		if err := checkOutput(file); err != nil {
			return nil, nil, err
		}
		trace, err := client.Trace(cmd.Context(), cfg, during, events)
		if err != nil {
			return nil, nil, err
		}
		t := timeline.New(trace)
		if file != "" {
			if err := output(cmd, file, t.WriteJSON); err != nil {
				return nil, nil, err
			}
		}
		if trace.Lost > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "the first %d events are lost: use a shorter --for or more --events\n", trace.Lost)
		}
		if file == "-" {
			return nil, nil, nil
		}
		return t.Shares(), t.WriteTable, nil
	})
	f := cmd.Flags()
	jobFlag(cmd, &cfg.Job)
	aggregatorFlags(cmd, &cfg, "the job's token", jobsToken)
	f.DurationVar(&during, "for", time.Second, "how long")
	f.IntVar(&events, "events", 0, "the most events that each lane keeps, the last ones; if 0, the aggregator's default")
	f.Lookup("json").Usage = "print JSON: the sums over all steps, by worker"
	f.StringVar(&file, "out", "", "write the timeline to this file, as JSON (-: standard output)")
	return cmd
}
