// Command study makes tables and plots of the documentation.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/lab/study/paper"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "study:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "study", Short: "Make tables and plots of the documentation", SilenceUsage: true, SilenceErrors: true,
	}
	cmd.AddCommand(paperCommand(), plotCommand())
	return cmd
}

func paperCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "paper",
		Short: "Compute the tables of docs/paper.md again, and write them there; run it in the module's root",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return paper.Rewrite("docs/paper.md") },
	}
}
