package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/policy"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Change who waits for whom in a running job",
		Long: `Change who waits for whom in a running job of mode stream. The policies are ` + strings.Join(policy.Names(), ", ") + `;
mode stream runs asp, ssp and lagtuner.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(policySetCommand())
	return cmd
}

func policySetCommand() *cobra.Command {
	var cfg client.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set POLICY",
		Short: "Let another policy decide, from a step on that no worker has begun",
		Example: `  rackweave policy set --job resnet --token-file token ssp:s=3
  rackweave policy set --job resnet --token-file token lagtuner:sl=3,su=15,reading=loose`,
		Args: oneArg("POLICY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := policy.Parse(args[0])
			if err != nil {
				return err
			}
			was, err := client.SetPolicy(cmd.Context(), cfg, spec.String())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), map[string]string{"was": was, "policy": spec.String()})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "job %s: %s, and was %s\n", cfg.Job, spec, was)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Server, "server", "http://127.0.0.1:7077", "URL of the aggregator")
	jobFlag(cmd, &cfg.Job)
	accessFlags(cmd, &cfg.CA, &cfg.Token, &cfg.Insecure, "the job's token", jobsToken)
	f.DurationVar(&cfg.Timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
