package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Shell gives the user of this process's terminal a shell in the guest, on its console, until the shell ends. It begins in the
// user's directory, with bin/ there in its PATH.
func (g *Guest) Shell(ctx context.Context) error {
	here, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("shell in guest %s: %w", g.cfg.Name, err)
	}
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
	_, err = g.Start(shellScript(GuestPath(here), size)).Wait(ctx)
	return err
}

// shellScript always succeeds: the status of the shell's last command is the user's concern. It lets only the kernel's errors
// through to the terminal.
func shellScript(dir, size string) string {
	quoted := "'" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
	return fmt.Sprintf(`stty %s -F /dev/ttyS0; echo 4 >/proc/sys/kernel/printk; cd %s; PATH="$PWD/bin:$PATH" setsid -c -w bash -i </dev/ttyS0 >/dev/ttyS0 2>&1; exit 0`, size, quoted)
}
