package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
)

func drainCommand() *cobra.Command {
	var cfg client.Config
	var after time.Duration
	cmd := printing(&cobra.Command{
		Use:   "drain",
		Short: "Let an aggregator end when its jobs have, and take no others",
		Example: `  rackweave drain
  rackweave drain --server https://aggregator:7077 --ca sha256:FINGERPRINT --token-file admin --after 10m`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		jobs, err := client.Drain(cmd.Context(), cfg, after)
		return map[string]int{"jobs": jobs}, says("draining, jobs now: %d", jobs), err
	})
	aggregatorFlags(cmd, &cfg, "the aggregator's admin token", adminsToken)
	cmd.Flags().DurationVar(&after, "after", 0, "end after this long, jobs or not; if 0, wait for them")
	timeoutFlag(cmd, &cfg)
	return cmd
}
