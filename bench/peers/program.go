package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench/internal/command"
	"github.com/rackweave/rackweave/bench/report"
)

// setting is one way to run a peer. The first of a peer's settings is the one that it is installed with.
type setting struct {
	name string
	args []string
}

// Peer is a library to compare with, which runs as a command and prints one line of JSON. It is not for concurrent use.
type Peer struct {
	launcher
	Name     string // on the command line
	settings []setting
	choices  map[string]choice // by the exchange they are best for
}

func newPeer(name string, l launcher, settings []setting) *Peer {
	return &Peer{launcher: l, Name: name, settings: settings, choices: map[string]choice{}}
}

// launcher holds the differences between peers.
type launcher interface {
	probe(ctx context.Context) error
	// command returns the command line of an exchange, after a probe. Its files go to dir, which outlives the run. tensors names a
	// file with the bytes of a tensor per line, empty for a flat buffer.
	command(ctx context.Context, spec Spec, s setting, dir, tensors string) ([]string, error)
}

// exitUnsupported is a script's exit status for a dtype that the library does not reduce.
const exitUnsupported = 3

// choice is the fastest setting and what each took, or why none works.
type choice struct {
	spec    Spec // what is run: the exchange asked for, or its f32 form
	setting setting
	tried   map[string]float64
	err     error
}

// Trial runs are short: the settings differ by much.
const (
	trialIters  = 4
	trialWarmup = 1
)

// output is a script's output.
type output struct {
	Version   string    `json:"version"`
	Transport string    `json:"transport"`
	TimesUS   []float64 `json:"times_us"`
	Wrong     uint64    `json:"wrong"`
}

// Probe reports why the peer cannot run here. The error wraps ErrMissing if the peer has to be installed.
func (p *Peer) Probe(ctx context.Context) error {
	if err := p.probe(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// Run runs an exchange in processes of its own, which have ended when it returns. It ends after a time that is generous for
// the exchange, or when ctx does. It runs a 16-bit exchange that the peer cannot do in f32, as the peer's users must: with as
// many elements in twice the bytes. The result's Setting and Bytes say so.
func (p *Peer) Run(ctx context.Context, spec Spec) (report.Times, error) {
	if err := spec.check(); err != nil {
		return report.Times{}, fmt.Errorf("%s: %w", p.Name, err)
	}
	key := fmt.Sprint(spec.Workers, spec.Bytes, spec.DType, spec.Tensors, spec.Rows, spec.Hosts, spec.Servers)
	best, known := p.choices[key]
	if !known {
		best = p.choose(ctx, spec)
		if errors.Is(best.err, ErrUnsupported) && spec.DType != "f32" {
			best = p.choose(ctx, spec.widened())
		}
		if ctx.Err() != nil {
			return report.Times{}, fmt.Errorf("%s: %w", p.Name, context.Cause(ctx))
		}
		p.choices[key] = best
	}
	if best.err != nil {
		return report.Times{}, best.err
	}
	best.spec.Iters, best.spec.Warmup = spec.Iters, spec.Warmup
	times, err := p.once(ctx, best.spec, best.setting)
	times.Tried = best.tried
	if best.spec.DType != spec.DType {
		times.Setting += ", in " + best.spec.DType
	}
	return times, err
}

// choose tries every setting. It records one that fails as 0.
func (p *Peer) choose(ctx context.Context, spec Spec) choice {
	best := choice{spec: spec, tried: map[string]float64{}}
	spec.Iters, spec.Warmup = trialIters, trialWarmup
	for _, s := range p.settings {
		times, err := p.once(ctx, spec, s)
		best.tried[s.name] = times.TimeUS.P50
		switch {
		case err != nil && best.err == nil:
			best.err = err // the error of the first setting, the peer as installed, is the one to report
		case err == nil && (best.setting.name == "" || times.TimeUS.P50 < best.tried[best.setting.name]):
			best.setting = s
		}
	}
	if best.setting.name != "" {
		best.err = nil
	}
	return best
}

// once runs the exchange with one setting.
func (p *Peer) once(ctx context.Context, spec Spec, s setting) (report.Times, error) {
	fail := func(err error) (report.Times, error) {
		return report.Times{}, fmt.Errorf("%s (%s): %w", p.Name, s.name, err)
	}
	dir, err := os.MkdirTemp("", "rackweave-peer-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	tensors, err := writeTensors(dir, spec.Tensors)
	if err != nil {
		return fail(err)
	}
	argv, err := p.command(ctx, spec, s, dir, tensors)
	if err != nil {
		return fail(err)
	}
	printed, err := command.Run(ctx, spec.deadline(), dir, argv)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitUnsupported {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return fail(err)
	}
	out, err := parseOutput(printed, spec.Iters)
	if err != nil {
		return fail(err)
	}
	measured := make([]time.Duration, len(out.TimesUS))
	for i, us := range out.TimesUS {
		measured[i] = time.Duration(us * float64(time.Microsecond))
	}
	return report.Times{
		Name: p.Name, Version: out.Version, Setting: s.name, Transport: out.Transport,
		Bytes: spec.Bytes, Workers: spec.Workers, TimeUS: report.Distribution(measured), Wrong: out.Wrong,
	}, nil
}

func writeTensors(dir string, tensors []uint64) (string, error) {
	if tensors == nil {
		return "", nil
	}
	var lines strings.Builder
	for _, bytes := range tensors {
		lines.WriteString(strconv.FormatUint(bytes, 10) + "\n")
	}
	name := filepath.Join(dir, "tensors")
	return name, os.WriteFile(name, []byte(lines.String()), 0o600)
}

// parseOutput reads a script's line of JSON. It skips other lines, which libraries may print.
func parseOutput(printed []byte, iters int) (output, error) {
	var out output
	for line := range strings.Lines(string(printed)) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		if err := json.Unmarshal([]byte(line), &out); err != nil {
			return output{}, fmt.Errorf("reading the result %.200q: %w", line, err)
		}
		if len(out.TimesUS) != iters {
			return output{}, fmt.Errorf("the result has %d times, want %d", len(out.TimesUS), iters)
		}
		return out, nil
	}
	return output{}, errors.New("no result was printed")
}
