package lab

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Shell gives the person at this process's terminal a shell in the guest, on its console, until that ends.
func (g *Guest) Shell(ctx context.Context) error {
	fd := int(os.Stdin.Fd())
	size := "rows 24 cols 80"
	if cols, rows, err := term.GetSize(fd); err == nil {
		size = fmt.Sprintf("rows %d cols %d", rows, cols)
	}
	if term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("shell in guest %s: %w", g.cfg.Name, err)
		}
		defer term.Restore(fd, old)
	}
	g.console.setMirror(os.Stdout)
	defer g.console.setMirror(nil)
	go io.Copy(g.console.conn, os.Stdin)
	_, err := g.Start(fmt.Sprintf("stty %s -F /dev/ttyS0; exec setsid -c -w bash -i </dev/ttyS0 >/dev/ttyS0 2>&1", size)).Wait(ctx)
	if e, ok := err.(*ExitError); ok && e.Status != 127 {
		return nil // the status of the shell's last command is the person's affair
	}
	return err
}
