// Command racks emulates racks on this machine, exchanges models among their workers, and measures such exchanges beside those of
// other libraries.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "racks:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "racks", Short: "Emulate racks on this machine, with network namespaces and shaped links",
		SilenceUsage: true, SilenceErrors: true,
	}
	var p program
	cmd.PersistentFlags().StringVar((*string)(&p), "program", "rackweave", "the rackweave command, as a path or a name in PATH")
	cmd.AddCommand(upCommand(&p), exchangeCommand(&p), statusCommand(&p), measureCommand(&p), compressCommand(&p))
	return cmd
}

// program is the rackweave command that runs in the racks, as the flag names it.
type program string

// find returns the program's path.
func (p program) find() (string, error) {
	path, err := exec.LookPath(string(p))
	if err != nil {
		return "", fmt.Errorf("--program: %w: build it by make build, and name it by --program bin/rackweave or put bin into PATH", err)
	}
	return filepath.Abs(path)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
