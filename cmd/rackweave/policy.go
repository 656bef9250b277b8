package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/policy"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Change who waits for whom in a running job",
		Long: `Change who waits for whom in a running job of mode stream. The policies are:
` + strings.Join(policy.Names(), ", ") + `.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(policySetCommand())
	return cmd
}

func policySetCommand() *cobra.Command {
	var cfg client.Config
	cmd := printing(&cobra.Command{
		Use:   "set POLICY",
		Short: "Let another policy decide, from a step on that no worker has begun",
		Example: `  rackweave policy set --job resnet --token-file token ssp:s=3
  rackweave policy set --job resnet --token-file token lagtuner:sl=3,su=15,reading=loose`,
		Args: oneArg("POLICY"),
	}, func(cmd *cobra.Command, args []string) (any, func(io.Writer), error) {
		spec, err := policy.Parse(args[0])
		if err != nil {
			return nil, nil, err
		}
		was, err := client.SetPolicy(cmd.Context(), cfg, spec.String())
		return map[string]string{"was": was, "policy": spec.String()}, says("job %s: %s, and was %s", cfg.Job, spec, was), err
	})
	jobFlag(cmd, &cfg.Job)
	aggregatorFlags(cmd, &cfg, "the job's token", jobsToken)
	timeoutFlag(cmd, &cfg)
	return cmd
}
