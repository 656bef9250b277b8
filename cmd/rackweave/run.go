package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/launch/control"
)

func runCommand() *cobra.Command {
	var place launch.Place
	var serveConfig string
	var grace time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run -n WORKERS [flags] -- PROGRAM [ARGUMENT…]",
		Short: "Run a program's workers on this machine, with an aggregator for them",
		Long: `Run a program once for each worker, on this machine, with an aggregator for them: one of its own, or --server. The workers find
in their environment what to join:

  RACKWEAVE_ADDR, RACKWEAVE_CA, RACKWEAVE_JOB, RACKWEAVE_TOKEN    the aggregator and the job
  RACKWEAVE_RANK, RACKWEAVE_WORLD_SIZE                            the worker's place in it
  RACKWEAVE_RUN                                                   tells this run from others under the same job's name
  RACKWEAVE_CONTROL                                               a socket by which librackweave's rw_join joins without HTTP
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
  MASTER_ADDR, MASTER_PORT                                        the same as PyTorch's launcher gives it

OMP_NUM_THREADS and PYTHONUNBUFFERED are set where they are not: the cores are divided among the workers, and lines of output
come when they are printed. Every line of output begins with the worker's rank. Standard input is empty.

When a worker fails, the others are told to end (SIGTERM) and killed after --grace; the command says which failed and ends with its
exit status, 128 and the signal's number where a signal ended it. Signals are passed on to the workers; after one that asks for an
end they have --grace, and a second one kills them. No worker outlives the command.`,
		Example: `  rackweave run -n 4 -- python train.py --epochs 10
  rackweave run -n 2 --server http://aggregator:7077 --job resnet --token SECRET -- python train.py
  rackweave run -n 4 --serve-config aggregator.yaml --json -- ./train`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no program is given: use rackweave run -n 4 -- python train.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if place.Server == "" && place.CA != "" {
				return errors.New("--ca is given without --server: the command's own aggregator uses no TLS")
			}
			if place.Server != "" && serveConfig != "" {
				return errors.New("--serve-config and --server are given: use one")
			}
			p := &printer{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), json: asJSON}
			return runJob(cmd.Context(), place, args, serveConfig, grace, p)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after the program are its own
	f.IntVarP(&place.Workers, "workers", "n", 1, "workers to run")
	f.StringVar(&place.Server, "server", "", "URL of a running aggregator, or of several to spread the job over, with commas between (default: one of its own)")
	f.StringVar(&place.CA, "ca", "", "file with the certificates to trust, or sha256:FINGERPRINT, for https")
	f.StringVar(&place.Job, "job", "", "name of the job (default: one made up)")
	f.StringVar(&place.Token, "token", "", "token of the job (default: one made up)")
	f.StringVar(&serveConfig, "serve-config", "", "YAML file with flags of rackweave serve, for the command's own aggregator")
	f.DurationVar(&grace, "grace", 10*time.Second, "how long workers that are told to end may take")
	f.BoolVar(&asJSON, "json", false, "print every line of output, and in the end how each worker ended, as a line of JSON")
	return cmd
}

func runJob(ctx context.Context, place launch.Place, argv []string, serveConfig string, grace time.Duration, p *printer) error {
	// This command passes these signals on to the workers, and ends when they have.
	signal.Reset(syscall.SIGINT, syscall.SIGTERM)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)

	if place.Job == "" {
		place.Job = "run-" + rand.Text()[:8]
	}
	if place.Token == "" {
		place.Token = rand.Text()
	}
	place.Run = rand.Text()
	job := launch.Job{Argv: argv, Workers: place.Workers, Grace: grace, Signals: signals, Line: p.worker}
	if err := job.Check(); err != nil {
		return err
	}
	var err error
	if place.MasterPort, err = launch.FreePort(); err != nil {
		return err
	}
	var aggregator *launch.Aggregator
	if place.Server == "" {
		if aggregator, err = serveFor(serveConfig, p); err != nil {
			return err
		}
		place.Server = aggregator.URL
		job.Lost = aggregator.Ended()
		job.LostWhy = aggregator.Err
	}
	proxy, err := control.Listen(control.Config{
		Server: place.Server, CA: place.CA, Job: place.Job, Run: place.Run, Token: place.Token, Workers: place.Workers,
	})
	var exits []launch.Exit
	if err == nil {
		usual := usualEnv(place.Workers)
		job.Env = func(rank int) []string {
			return append(append(place.Env(rank), "RACKWEAVE_CONTROL="+proxy.Path(rank)), usual...)
		}
		exits, err = launch.Run(ctx, job)
		err = errors.Join(err, proxy.Close())
	}
	if aggregator != nil {
		if stop := aggregator.Stop(); err == nil {
			err = stop
		}
	}
	return errors.Join(err, p.end(exits, err))
}

// serveFor starts the command's own aggregator, from this same binary.
func serveFor(config string, p *printer) (*launch.Aggregator, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to start an aggregator from it: %w", err)
	}
	argv := []string{self, "serve", "--until-eof", "--listen", "127.0.0.1:0", "--log-level", "warn"}
	if config != "" {
		argv = append(argv, "--config", config)
	}
	// It ends after the workers.
	return launch.StartAggregator(context.Background(), argv, &launch.Lines{Line: p.aggregator})
}

// usualEnv returns the defaults of variables that the user has not set.
func usualEnv(workers int) []string {
	var env []string
	for name, value := range map[string]string{
		"OMP_NUM_THREADS":  strconv.Itoa(max(runtime.NumCPU()/workers, 1)),
		"PYTHONUNBUFFERED": "1",
	} {
		if _, set := os.LookupEnv(name); !set {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// printer prints the output of workers and aggregator, whole lines at a time.
type printer struct {
	mu       sync.Mutex
	out, err io.Writer
	json     bool
}

// outputLine is a line of output in JSON. The aggregator has no rank.
type outputLine struct {
	Rank   *int          `json:"rank,omitempty"`
	Stream launch.Stream `json:"stream"`
	Line   string        `json:"line"`
}

func (p *printer) worker(rank int, from launch.Stream, line []byte) {
	p.print(strconv.Itoa(rank), from, line, outputLine{Rank: &rank, Stream: from, Line: string(line)})
}

func (p *printer) aggregator(line []byte) error {
	p.print("aggregator", launch.Stderr, line, outputLine{Stream: launch.Stderr, Line: string(line)})
	return nil
}

func (p *printer) print(who string, from launch.Stream, line []byte, asJSON outputLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		_ = json.NewEncoder(p.out).Encode(asJSON)
		return
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "[%s] %s\n", who, line)
	to := p.out
	if from == launch.Stderr {
		to = p.err
	}
	_, _ = to.Write(b.Bytes())
}

// end prints how the workers ended.
func (p *printer) end(exits []launch.Exit, err error) error {
	if !p.json {
		return nil
	}
	result := struct {
		Exits []launch.Exit `json:"exits"`
		Error string        `json:"error,omitempty"`
	}{Exits: exits}
	if err != nil {
		result.Error = err.Error()
	}
	return json.NewEncoder(p.out).Encode(result)
}
