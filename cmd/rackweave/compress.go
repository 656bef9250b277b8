package main

import (
	"cmp"
	"io"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
)

func compressCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compress",
		Short: "Change the codec of a running job's gradients",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(compressSetCommand())
	return cmd
}

func compressSetCommand() *cobra.Command {
	var cfg client.Config
	cmd := printing(&cobra.Command{
		Use:   "set CODEC",
		Short: "Switch all gradients to a codec, from a step that no worker has begun",
		Long: `Switch all gradients of a running job to a codec, from a step that no worker has begun. The job must have begun with
compress=auto:…, and with auto its controller chooses again.`,
		Example: `  rackweave compress set --job resnet --token-file token int4
  rackweave compress set --job resnet --token-file token auto`,
		Args: oneArg("CODEC"),
	}, func(cmd *cobra.Command, args []string) (any, func(io.Writer), error) {
		was, err := client.SetCodec(cmd.Context(), cfg, args[0])
		return map[string]string{"was": was, "codec": args[0]}, says("job %s: %s once all workers accept it; decision %s was the last", cfg.Job,
			args[0], cmp.Or(was, "none")), err
	})
	jobFlag(cmd, &cfg.Job)
	aggregatorFlags(cmd, &cfg, "the job's token", jobsToken)
	timeoutFlag(cmd, &cfg)
	return cmd
}
