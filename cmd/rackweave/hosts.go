package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rackweave/rackweave/launch"
)

// hostsFlags are the flags of workers on other hosts.
type hostsFlags struct {
	list, env []string
	ssh       string
}

func (h *hostsFlags) add(f *pflag.FlagSet) {
	f.StringSliceVar(&h.list, "hosts", nil, "hosts that run the workers, as HOST:WORKERS,… in the order of ranks (default: this one)")
	f.StringVar(&h.ssh, "ssh", "ssh -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=5",
		"command that runs another on a host, before the host's name")
}

// check returns why workers cannot be started on other hosts, or by srun.
func (h *hostsFlags) check(cmd *cobra.Command, srun bool, server string) error {
	ssh := strings.Fields(h.ssh)
	if len(ssh) == 0 {
		return errors.New("--ssh is empty: give a command that takes a host's name and another command")
	}
	if _, err := exec.LookPath(ssh[0]); err != nil && !srun {
		return fmt.Errorf("--ssh %q: %w: install it, or give another command", h.ssh, err)
	}
	switch f := cmd.Flags(); {
	case srun && len(h.list) > 0:
		return errors.New("--hosts and --srun are given: use one")
	case f.Changed("workers"):
		return errors.New("--workers is given with --hosts or --srun, which give their number: leave it out")
	case server == "":
		return errors.New("workers of several hosts have no --server: start an aggregator that listens for them (rackweave serve --listen :7077)")
	}
	return nil
}

// host is a host that runs workers.
type host struct {
	name  string
	first int // its first worker's rank
	n     int
	tell  chan any // what goes to the command there: the order, then signals
}

// hostsOf reads HOST:WORKERS.
func hostsOf(list []string) (hosts []*host, workers int, err error) {
	for _, text := range list {
		name, count, counted := strings.Cut(text, ":")
		n := 1
		if counted {
			n, err = strconv.Atoi(count)
		}
		if err != nil || name == "" || strings.HasPrefix(name, "-") || n < 1 || n > launch.MaxWorkers {
			return nil, 0, fmt.Errorf("host %q: use HOST:WORKERS, such as a:2, with 1 to %d workers", text, launch.MaxWorkers)
		}
		hosts = append(hosts, &host{name: name, first: workers, n: n, tell: make(chan any, 16)})
		workers += n
	}
	if workers > launch.MaxWorkers {
		return nil, 0, fmt.Errorf("%d workers on all hosts: use at most %d", workers, launch.MaxWorkers)
	}
	return hosts, workers, nil
}

// addr returns the address at which other hosts reach the host.
func (h *host) addr() string { return h.name[strings.LastIndex(h.name, "@")+1:] }

// hostOrder tells the command on a host what to run. It goes through standard input, as do signals after it, because other users
// cannot read the token there.
type hostOrder struct {
	Place launch.Place
	Argv  []string
	Env   []string // NAME=VALUE
	Dir   string
	Grace time.Duration
}

// killAfter is the time that hosts may take to end beyond the grace of their workers.
const killAfter = 5 * time.Second

// run runs workers on the hosts.
func (h *hostsFlags) run(ctx context.Context, place launch.Place, argv []string, grace time.Duration, p *printer) error {
	hosts, workers, err := hostsOf(h.list)
	if err != nil {
		return err
	}
	ssh := strings.Fields(h.ssh)
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start it on other hosts: %w", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if grace <= 0 {
		return fmt.Errorf("grace of %v: use a time above 0", grace)
	}
	name(&place)
	if place.Workers = workers; place.MasterAddr == "" {
		place.MasterAddr = hosts[0].addr()
	}
	var env []string
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); slices.Contains(h.env, name) ||
			strings.HasPrefix(name, "RACKWEAVE_") && name != "RACKWEAVE_ADMIN_TOKEN" {
			env = append(env, v)
		}
	}
	for _, host := range hosts {
		own := place
		own.First, own.Here = host.first, host.n
		host.tell <- hostOrder{own, argv, env, dir, grace}
		defer close(host.tell)
	}
	signals := passedOn()
	defer signal.Stop(signals)
	said := &hostsSaid{printer: p}
	_, err = launch.Run(ctx, launch.Job{
		Argv: ssh, Workers: len(hosts), Grace: grace + killAfter, Signals: signals, MaxLine: 8 << 20,
		Command: func(i int) *exec.Cmd {
			return hosts[i].command(append(ssh[:len(ssh):len(ssh)], hosts[i].name, "exec '"+strings.ReplaceAll(self, "'", `'\''`)+"' run-host"))
		},
		Signal: func(i int, sig syscall.Signal) {
			select {
			case hosts[i].tell <- sig:
			default: // the host hangs, and is killed after its grace
			}
		},
		Line: func(i int, from launch.Stream, line []byte) { said.line(hosts[i], from, line) },
	})
	if failed := new(launch.FailedError); errors.As(err, &failed) && failed.First != nil {
		err = &hostError{hosts[failed.First.Rank].name, failed}
	}
	return errors.Join(err, p.end(said.exits, err))
}

// command returns a command whose standard input carries what the host is told, and ends when this process does.
func (h *host) command(argv []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		cmd.Err = err
		return cmd
	}
	go func() {
		for m := range h.tell {
			_ = json.NewEncoder(in).Encode(m) // a command that does not take it reports why
		}
	}()
	return cmd
}

// hostError is the failure of a host's workers, or of what reaches the host.
type hostError struct {
	host string
	*launch.FailedError
}

func (e *hostError) Error() string {
	text := fmt.Sprintf("host %s: exit status %d", e.host, e.First.Code)
	if said := strings.TrimPrefix(e.First.Said, "rackweave: "); said != "" {
		text = fmt.Sprintf("host %s: %s", e.host, said)
	}
	if e.Cause != nil {
		text = e.Cause.Error() + "; " + text
	}
	return text
}

func (e *hostError) Unwrap() error { return e.FailedError }

// hostsSaid prints what hosts say, and keeps how their workers ended.
type hostsSaid struct {
	*printer
	mu    sync.Mutex
	exits []launch.Exit
}

// line prints a line of a host's workers, which is in JSON, or of the command that reaches the host.
func (s *hostsSaid) line(h *host, from launch.Stream, line []byte) {
	var said struct {
		outputLine
		Exits []launch.Exit
	}
	switch err := json.Unmarshal(line, &said); {
	case err == nil && said.Rank != nil:
		s.worker(*said.Rank, said.Stream, []byte(said.Line))
	case err == nil && said.Exits != nil:
		s.mu.Lock()
		s.exits = append(s.exits, said.Exits...)
		s.mu.Unlock()
	case len(line) > 0 && !strings.HasPrefix(string(line), "rackweave: "): // else it is the error that the host exits with
		s.print(h.name, nil, from, line)
	}
}

// hostCommand returns the command that runs a host's workers. It ends them when its standard input ends, because the launcher has
// ended then or cannot be reached.
func hostCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run-host", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the launcher no longer reads, and the workers are still to end
			var o hostOrder
			dec := json.NewDecoder(cmd.InOrStdin())
			if err := dec.Decode(&o); err != nil {
				return fmt.Errorf("read what to run: %w", err)
			}
			if err := os.Chdir(o.Dir); err != nil {
				return fmt.Errorf("go to the launcher's directory: %w", err)
			}
			for _, v := range o.Env {
				name, value, _ := strings.Cut(v, "=")
				os.Setenv(name, value)
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			go func() {
				var s syscall.Signal
				for dec.Decode(&s) == nil {
					_ = syscall.Kill(os.Getpid(), s) // to be passed on
				}
				cancel(errors.New("the launcher has ended, or cannot be reached"))
			}()
			return runJob(ctx, o.Place, o.Argv, "", o.Grace, &printer{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), json: true})
		},
	}
}

// ofSrun reads a worker's place from srun's variables.
func ofSrun(p *launch.Place) error {
	for name, to := range map[string]*int{"SLURM_PROCID": &p.First, "SLURM_NTASKS": &p.Workers, "SLURM_LOCALID": &p.Local} {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil || n < 0 {
			return fmt.Errorf("%s is %q: start this by srun, as srun -n 4 rackweave run --srun", name, os.Getenv(name))
		}
		*to = n
	}
	p.Here, p.OnHost = 1, 1
	// SLURM_STEP_TASKS_PER_NODE has the form 2(x3),1.
	node, _ := strconv.Atoi(os.Getenv("SLURM_NODEID"))
	for _, m := range regexp.MustCompile(`(\d+)(?:\(x(\d+)\))?`).FindAllStringSubmatch(os.Getenv("SLURM_STEP_TASKS_PER_NODE"), -1) {
		times, _ := strconv.Atoi(cmp.Or(m[2], "1"))
		if node -= times; node < 0 {
			p.OnHost, _ = strconv.Atoi(m[1])
			break
		}
	}
	// The first of a list such as node[03-07,9],other.
	nodes := regexp.MustCompile(`^([^\[,]+)(?:\[(\d+))?`).FindStringSubmatch(os.Getenv("SLURM_STEP_NODELIST"))
	if p.MasterAddr == "" && nodes == nil {
		return errors.New("SLURM_STEP_NODELIST is empty: give the first host by --master-addr")
	}
	if p.MasterAddr == "" {
		p.MasterAddr = nodes[1] + nodes[2]
	}
	p.Run = os.Getenv("SLURM_JOB_ID") + ":" + os.Getenv("SLURM_STEP_ID")
	p.Job = cmp.Or(p.Job, "slurm-"+strings.ReplaceAll(p.Run, ":", "-"))
	if p.Token == "" { // the aggregator asks for none
		p.Token, p.Insecure = p.Run, true
	}
	return nil
}
