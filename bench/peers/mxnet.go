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

//go:embed scripts/mxnet_kvstore.py
var mxnetScript []byte

// mxnetPythons are tried in this order: one of the user's own, then the one that scripts/mxnet-env.sh makes.
var mxnetPythons = []string{"python3", "build/mxnet-venv/bin/python"}

// mxnet runs pushpull of a kvstore in MXNet.
type mxnet struct {
	module string // that the python must have
	remedy string // where it has not
	args   []string
	python string
}

// MXNet is MXNet's dist_sync over TCP: with one server on the loopback device, or with a server on each of the exchange's server
// hosts. Tensors of at least so many elements are divided among the servers; 0: MXNet's default.
func MXNet(divided int) Peer {
	var args []string
	if divided > 0 {
		args = []string{"--divided=" + strconv.Itoa(divided)}
	}
	return newProgram("dist_sync", &mxnet{
		module: "mxnet", remedy: "scripts/mxnet-env.sh", args: append(args, "--store=dist_sync"),
	}, []setting{{report.AsInstalled, nil}})
}

// Through is RackWeave's kvstore in MXNet, run by the rackweave command at program: the same exchange as [MXNet]'s. arena says
// whether the tensors lie in the arena, as rackweave.mxnet makes parameters and gradients, or in MXNet's ordinary memory.
func Through(program string, arena bool) Peer {
	memory := "--memory=ordinary"
	if arena {
		memory = "--memory=arena"
	}
	return newProgram("rackweave.mxnet", &mxnet{
		module: "rackweave.mxnet", remedy: "scripts/mxnet-env.sh && make wheel && build/mxnet-venv/bin/python -m pip install build/rackweave-*.whl",
		args: []string{"--store=rackweave", "--rackweave=" + program, memory},
	}, []setting{{report.AsInstalled, nil}})
}

// Probe finds a python that has the module.
func (m *mxnet) Probe(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "rackweave-peer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, python := range mxnetPythons {
		if _, err := command.Run(ctx, time.Minute, dir, []string{python, "-c", "import " + m.module}); err == nil {
			m.python = python
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("mxnet: %w: no %s in %s; install it: %s", ErrMissing, m.module, strings.Join(mxnetPythons, " or "), m.remedy)
}

func (m *mxnet) command(spec Spec, s setting, dir, tensors string) ([]string, error) {
	if m.python == "" {
		panic("peers: mxnet is run before it was probed")
	}
	script := filepath.Join(dir, "mxnet_kvstore.py")
	if err := os.WriteFile(script, mxnetScript, 0o600); err != nil {
		return nil, err
	}
	argv := append([]string{m.python, script}, m.args...)
	argv = append(argv,
		"--workers", strconv.Itoa(spec.Workers), "--bytes", strconv.FormatUint(spec.Bytes, 10), "--dtype", spec.DType,
		"--iters", strconv.Itoa(spec.Iters), "--warmup", strconv.Itoa(spec.Warmup),
	)
	if tensors != "" {
		argv = append(argv, "--tensors", tensors)
	}
	argv = append(argv, hostFlags("--hosts", spec.Hosts)...)
	argv = append(argv, hostFlags("--server-hosts", spec.Servers)...)
	return append(argv, s.args...), nil
}
