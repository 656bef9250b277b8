package peers

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench/internal/command"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/rows"
)

var (
	//go:embed scripts/gloo.py
	glooScript []byte
	//go:embed scripts/mxnet_kvstore.py
	mxnetScript []byte
)

// asInstalled is of peers that have nothing to tune.
var asInstalled = []setting{{report.AsInstalled, nil}}

// mxnetRowsSettings: a server merges and updates rows on one thread (measured with 4 workers on 2 cores).
var mxnetRowsSettings = []setting{{report.AsInstalled, nil}, {"2 servers", []string{"--servers=2"}}}

// glooSettings: torch as installed does one operation at a time on two threads, over one set of connections. Several
// operations at once let one rank's sending overlap its adding; more of them than this only cost (measured with 4 and 8
// processes on 2 cores).
var glooSettings = []setting{
	{report.AsInstalled, nil},
	{"8 operations at once", []string{"--pieces=8"}},
	{"4 operations on 4 threads and connections", []string{"--pieces=4", "--threads=4", "--devices=4"}},
}

// Gloo is the all-reduce of torch.distributed's Gloo backend, PyTorch's default for tensors on CPUs, over TCP on the
// loopback device.
func Gloo() *Peer { return newPeer("gloo", gloo(), glooSettings) }

func gloo() *python {
	return &python{
		// The user's own python3 comes first; only Debian's sees Debian's package.
		pythons: []string{"python3", "/usr/bin/python3"}, has: "import torch.distributed as d; d.ProcessGroupGloo",
		lacks: "torch.distributed with Gloo", remedy: "apt-get install -y python3-torch", script: glooScript,
	}
}

// mxnetPythons are one of the user's own and the one that scripts/mxnet-env.sh makes.
var mxnetPythons = []string{"python3", "build/mxnet-venv/bin/python"}

// MXNet is MXNet's dist_sync over TCP: with one server on the loopback device, or with a server on each of the exchange's server
// hosts. Tensors of at least so many elements are divided among the servers. If 0, MXNet's default.
func MXNet(divided int) *Peer {
	p := mxnet()
	if divided > 0 {
		p.args = append(p.args, "--divided="+strconv.Itoa(divided))
	}
	return newPeer("dist_sync", p, asInstalled)
}

func mxnet() *python {
	return &python{
		pythons: mxnetPythons, has: "import mxnet", lacks: "mxnet", remedy: "scripts/mxnet-env.sh", script: mxnetScript,
		args: []string{"--store=dist_sync"},
	}
}

// Through is RackWeave's kvstore in MXNet, run by the rackweave command at program: the same exchange as [MXNet]'s. arena says
// whether the tensors lie in the arena, as rackweave.mxnet makes parameters and gradients, or in MXNet's ordinary memory.
func Through(program string, arena bool) *Peer {
	memory := "--memory=ordinary"
	if arena {
		memory = "--memory=arena"
	}
	return newPeer("rackweave.mxnet", &python{
		pythons: mxnetPythons, has: "import rackweave.mxnet", lacks: "rackweave.mxnet",
		remedy: "scripts/mxnet-env.sh && make wheel && build/mxnet-venv/bin/python -m pip install build/rackweave-*.whl",
		script: mxnetScript, args: []string{"--store=rackweave", "--rackweave=" + program, memory},
	}, asInstalled)
}

// python runs a script.
type python struct {
	pythons       []string // tried in this order
	has           string   // a statement that the python must understand
	lacks, remedy string   // of one that does not
	script        []byte
	args          []string
	found         string
}

func (p *python) probe(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "rackweave-peer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, python := range p.pythons {
		if _, err := command.Run(ctx, time.Minute, dir, []string{python, "-c", p.has}); err == nil {
			p.found = python
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: no %s in %s; install it: %s", ErrMissing, p.lacks, strings.Join(p.pythons, " or "), p.remedy)
}

func (p *python) command(_ context.Context, spec Spec, s setting, dir, tensors string) ([]string, error) {
	script := filepath.Join(dir, "exchange.py")
	if err := os.WriteFile(script, p.script, 0o600); err != nil {
		return nil, err
	}
	argv := append([]string{p.found, script}, p.args...)
	argv = append(argv,
		"--workers", strconv.Itoa(spec.Workers), "--bytes", strconv.FormatUint(spec.Bytes, 10), "--dtype", spec.DType,
		"--iters", strconv.Itoa(spec.Iters), "--warmup", strconv.Itoa(spec.Warmup),
	)
	if spec.Rows.Rows > 0 {
		var ids []byte
		for _, draws := range spec.Rows.Draws(spec.Seed, 0, spec.Workers) {
			for _, draw := range draws {
				for _, id := range draw {
					ids = binary.NativeEndian.AppendUint64(ids, uint64(id))
				}
			}
		}
		file := filepath.Join(dir, "ids")
		if err := os.WriteFile(file, ids, 0o600); err != nil {
			return nil, err
		}
		argv = append(argv, "--ids", file, "--sets", strconv.Itoa(rows.Steps), "--rows",
			fmt.Sprintf("%d,%d", spec.Rows.Rows, spec.Rows.Width))
	}
	if tensors != "" {
		argv = append(argv, "--tensors", tensors)
	}
	argv = append(argv, hostFlags("--hosts", spec.Hosts)...)
	argv = append(argv, hostFlags("--server-hosts", spec.Servers)...)
	return append(argv, s.args...), nil
}
