package peers

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench/internal/command"
	"github.com/rackweave/rackweave/bench/report"
)

//go:embed scripts/gloo.py
var glooScript []byte

// pythons are tried in this order. The user's own python3 comes first; only Debian's sees Debian's package.
var pythons = []string{"python3", "/usr/bin/python3"}

// glooSettings: torch as installed does one operation at a time on two threads, over one set of connections. Several
// operations at once let one rank's sending overlap its adding; more of them than this only cost (measured with 4 and 8
// processes on 2 cores).
var glooSettings = []setting{
	{report.AsInstalled, nil},
	{"8 operations at once", []string{"--pieces=8"}},
	{"4 operations on 4 threads and connections", []string{"--pieces=4", "--threads=4", "--devices=4"}},
}

// gloo runs torch.distributed.
type gloo struct{ python string }

// Gloo is the all-reduce of torch.distributed's Gloo backend, PyTorch's default for tensors on CPUs, over TCP on the
// loopback device.
func Gloo() Peer { return newProgram("gloo", &gloo{}, glooSettings) }

// Probe finds a python that has torch with Gloo.
func (g *gloo) Probe(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "rackweave-peer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, python := range pythons {
		if _, err = command.Run(ctx, time.Minute, dir,
			[]string{python, "-c", "import torch.distributed as d; d.ProcessGroupGloo"}); err == nil {
			g.python = python
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("gloo: %w: no torch.distributed with Gloo in %s; install it: apt-get install -y python3-torch",
		ErrMissing, strings.Join(pythons, " or "))
}

func (g *gloo) command(spec Spec, s setting, dir, tensors string) ([]string, error) {
	if g.python == "" {
		panic("peers: gloo is run before it was probed")
	}
	script := filepath.Join(dir, "gloo.py")
	if err := os.WriteFile(script, glooScript, 0o600); err != nil {
		return nil, err
	}
	argv := []string{
		g.python, script,
		"--workers", strconv.Itoa(spec.Workers), "--bytes", strconv.FormatUint(spec.Bytes, 10), "--dtype", spec.DType,
		"--iters", strconv.Itoa(spec.Iters), "--warmup", strconv.Itoa(spec.Warmup),
	}
	if tensors != "" {
		argv = append(argv, "--tensors", tensors)
	}
	argv = append(argv, hostFlags("--hosts", spec.Hosts)...)
	return append(argv, s.args...), nil
}
