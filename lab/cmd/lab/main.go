// Command lab boots a test rack and runs a command, or a shell, in its first guest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/lab"
)

const usage = `usage: lab [-shape SHAPE] [-for DURATION] shell
       lab [-shape SHAPE] [-for DURATION] run COMMAND...

Boots QEMU guests with soft-RoCE devices and gives a shell in the first, or runs a command there and exits with its status.
The guest sees this machine's files, read-only. It ends with the shell.

`

func main() {
	shape := flag.String("shape", string(lab.Single), fmt.Sprintf("which guests: one of %v", lab.Shapes()))
	life := flag.Duration("for", time.Hour, "how long the guests may live")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	status, err := run(lab.Shape(*shape), *life, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	os.Exit(status)
}

func run(shape lab.Shape, life time.Duration, args []string) (status int, err error) {
	if len(args) == 0 || (args[0] == "shell") != (len(args) == 1) || args[0] != "shell" && args[0] != "run" {
		flag.Usage()
		return 2, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfgs, err := shape.Configs()
	if err != nil {
		return 2, err
	}
	for i := range cfgs {
		cfgs[i].Deadline = life
	}
	fmt.Fprintf(os.Stderr, "lab: booting %d guest(s), some 10 s each…\n", len(cfgs))
	rack, err := lab.BootAll(ctx, cfgs...)
	if err != nil {
		return 1, err
	}
	defer func() {
		if e := rack.Close(); e != nil && err == nil {
			status, err = 1, e
		}
	}()
	for _, g := range rack.Guests {
		fmt.Fprintf(os.Stderr, "lab: guest %s is up, %s\n", g.Name(), g.Addr(0))
	}
	if args[0] == "shell" {
		return 0, rack.Guests[0].Shell(ctx)
	}
	out, err := rack.Guests[0].Run(ctx, strings.Join(args[1:], " "))
	fmt.Print(out)
	var exit *lab.ExitError
	if errors.As(err, &exit) {
		return exit.Status, nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
