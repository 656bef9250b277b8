// Command rackweave is the aggregator and its tools: one binary.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what the first could not
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "rackweave:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rackweave",
		Short: "Aggregate gradients for a rack of training workers",
		Long: `RackWeave takes gradients from every training worker of a rack, sums them and runs the optimizer on pinned cores as 32 KiB
chunks stream in, and writes the parameters back.

Every flag can stand in a YAML file given by --config, under the flag's name; a flag on the command line wins.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return applyConfig(cmd)
		},
	}
	cmd.PersistentFlags().String("config", "", "YAML file with flags by their names")
	cmd.AddCommand(serveCommand(), benchCommand(), statusCommand(), drainCommand(), topoCommand(), doctorCommand(), rxeCommand(), workerCommand())
	return cmd
}
