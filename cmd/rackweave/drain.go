package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
)

func drainCommand() *cobra.Command {
	var cfg client.Config
	var after time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Let an aggregator end when its jobs have, and take no others",
		Example: `  rackweave drain
  rackweave drain --server https://aggregator:7077 --ca sha256:FINGERPRINT --token-file admin --after 10m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			jobs, err := client.Drain(cmd.Context(), cfg, after)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), map[string]int{"jobs": jobs})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "draining, jobs now: %d\n", jobs)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Server, "server", "http://127.0.0.1:7077", "URL of the aggregator")
	accessFlags(cmd, &cfg.CA, &cfg.Token, &cfg.Insecure, "the aggregator's admin token", adminsToken)
	f.DurationVar(&after, "after", 0, "end after this long, jobs or not; if 0, wait for them")
	f.DurationVar(&cfg.Timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
