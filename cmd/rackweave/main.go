// Command rackweave is the aggregator and its tools: one binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/launch"
)

// version is set by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "rackweave:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode returns the exit status of a command that failed: that of the program it ran if the program failed.
func exitCode(err error) int {
	if failed := new(launch.FailedError); errors.As(err, &failed) {
		return failed.ExitCode()
	}
	return 1
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rackweave",
		Short: "Aggregate gradients for a rack of training workers",
		Long: `RackWeave takes gradients from every training worker of a rack, sums them and runs the optimizer on pinned cores as 32 KiB
chunks stream in, and writes the parameters back.

Every flag can stand in a YAML file given by --config, under the flag's name; a flag on the command line wins.
Tokens stand in files or in the environment, as all users of a host can read command lines.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyConfig(cmd); err != nil {
				return err
			}
			return readSecrets(cmd)
		},
	}
	cmd.PersistentFlags().String("config", "", "YAML file with flags by their names")
	cmd.AddCommand(serveCommand(), runCommand(), benchCommand(), statusCommand(), policyCommand(), traceCommand(),
		drainCommand(), tokenCommand(), topoCommand(), planCommand(), probeCommand(), doctorCommand(), rxeCommand(), workerCommand(),
		hostCommand())
	return cmd
}

// oneArg accepts one argument, and names it in the error for none or more.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%d arguments %q: give one, %s; see %s --help", len(args), args, name, cmd.CommandPath())
		}
		return nil
	}
}

// jobFlag adds the flag --job to a command that cannot do without.
func jobFlag(cmd *cobra.Command, job *string) {
	cmd.Flags().StringVar(job, "job", "", "the job's name, as rackweave status prints it")
	if err := cmd.MarkFlagRequired("job"); err != nil {
		panic(err)
	}
}
