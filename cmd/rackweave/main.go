// Command rackweave is the aggregator and its tools: one binary.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	_ "github.com/rackweave/rackweave/cgo/monitor"
	"github.com/rackweave/rackweave/client"
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
	cmd.AddCommand(serveCommand(), runCommand(), benchCommand(), statusCommand(), policyCommand(), compressCommand(), traceCommand(),
		drainCommand(), tokenCommand(), topoCommand(), planCommand(), probeCommand(), doctorCommand(), rxeCommand(), dataCommand(),
		workerCommand(), hostCommand())
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

// result is a command that returns what it prints: a value for --json, and text for people. Without text it has printed all.
type result func(cmd *cobra.Command, args []string) (v any, text func(io.Writer), err error)

// printing runs a result by a command, to which it adds --json. Without Args the command takes no arguments.
func printing(cmd *cobra.Command, result result) *cobra.Command {
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v, text, err := result(cmd, args)
		if err != nil || text == nil {
			return err
		}
		if *asJSON {
			return writeJSON(cmd.OutOrStdout(), v)
		}
		return writeText(cmd.OutOrStdout(), text)
	}
	return cmd
}

// writeText writes text whole.
func writeText(w io.Writer, text func(io.Writer)) error {
	var b bytes.Buffer
	text(&b)
	_, err := b.WriteTo(w)
	return err
}

// printReport writes a result to a file as JSON, and prints it as text unless that file is standard output.
func printReport(cmd *cobra.Command, jsonFile string, v any, text func(io.Writer)) error {
	if jsonFile != "" {
		if err := output(cmd, jsonFile, func(w io.Writer) error { return writeJSON(w, v) }); err != nil || jsonFile == "-" {
			return err
		}
	}
	return writeText(cmd.OutOrStdout(), text)
}

// says returns a line of text.
func says(format string, args ...any) func(io.Writer) {
	return func(w io.Writer) { fmt.Fprintf(w, format+"\n", args...) }
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// aggregatorFlags add the flags by which a command calls an aggregator, with a token that what describes.
func aggregatorFlags(cmd *cobra.Command, cfg *client.Config, what string, env ...string) {
	cmd.Flags().StringVar(&cfg.Server, "server", "http://127.0.0.1:7077", "URL of the aggregator")
	accessFlags(cmd, &cfg.CA, &cfg.Token, &cfg.Insecure, what, env...)
}

// timeoutFlag adds the flag --timeout of a command whose answer is there at once.
func timeoutFlag(cmd *cobra.Command, cfg *client.Config) {
	cmd.Flags().DurationVar(&cfg.Timeout, "timeout", 5*time.Second, "how long to wait for the answer")
}

// jobFlag adds the flag --job to a command that cannot do without.
func jobFlag(cmd *cobra.Command, job *string) {
	cmd.Flags().StringVar(job, "job", "", "the job's name, as rackweave status prints it")
	if err := cmd.MarkFlagRequired("job"); err != nil {
		panic(err)
	}
}
