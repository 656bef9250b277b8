package main

import (
	"cmp"
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/launch/control"
)

func runCommand() *cobra.Command {
	var place launch.Place
	var hosts hostsFlags
	var serveConfig string
	var grace time.Duration
	var asJSON, srun bool
	cmd := &cobra.Command{
		Use:   "run -n WORKERS [flags] -- PROGRAM [ARGUMENT…]",
		Short: "Run a program's workers on this machine or on several, with an aggregator for them",
		Long: `Run a program once for each worker, on this machine, with an aggregator for them: one of its own, or --server. The workers find
in their environment what to join:

  RACKWEAVE_ADDR, RACKWEAVE_CA, RACKWEAVE_JOB, RACKWEAVE_TOKEN    the aggregator and the job
  RACKWEAVE_RANK, RACKWEAVE_WORLD_SIZE                            the worker's place in it
  RACKWEAVE_RUN                                                   tells this run from others under the same job's name
  RACKWEAVE_CONTROL                                               a socket by which librackweave's rw_join joins without HTTP
  RACKWEAVE_COMPRESS                                              --compress, for programs that name no codecs
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
  MASTER_ADDR, MASTER_PORT                                        the same as PyTorch's launcher gives it

OMP_NUM_THREADS and PYTHONUNBUFFERED are set where they are not: the cores are divided among the workers, and lines of output
come when they are printed. Every line of output begins with the worker's rank. Standard input is empty.

When a worker fails, the others are told to end (SIGTERM) and killed after --grace; the command says which failed and ends with its
exit status, 128 and the signal's number where a signal ended it. Signals are passed on to the workers; after one that asks for an
end they have --grace, and a second one kills them. No worker outlives the command.

With --hosts the workers run on other hosts, which --ssh reaches without a password; ranks count through the hosts in order. This
program, the workers' program and the working directory have the same paths there. The environment is that of --env. Tokens go
through standard input. With several racks the hosts stand in the racks' order, and --server names any of the racks' aggregators.

With --srun the command runs one worker, whose rank and host are srun's (SLURM_PROCID, …): srun -n 4 rackweave run --srun -- ….`,
		Example: `  rackweave run -n 4 -- python train.py --epochs 10
  rackweave run -n 2 --server https://aggregator:7077 --ca aggregator.pem --job resnet --token-file token -- python train.py
  rackweave run --hosts a:2,b:2 --server http://aggregator:7077 -- python train.py
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
			if srun || len(hosts.list) > 0 {
				if err := hosts.check(cmd, srun, place.Server); err != nil {
					return err
				}
			}
			switch {
			case srun:
				if err := ofSrun(&place); err != nil {
					return err
				}
			case len(hosts.list) > 0:
				return hosts.run(cmd.Context(), place, args, grace, p)
			}
			return runJob(cmd.Context(), place, args, serveConfig, grace, p)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after the program are its own
	f.IntVarP(&place.Workers, "workers", "n", 1, "workers to run")
	f.StringVar(&place.Server, "server", "", "URL of a running aggregator, or of several to spread the job over, with commas between (default: one of its own)")
	f.StringVar(&place.Job, "job", "", "name of the job (default: one made up)")
	accessFlags(cmd, &place.CA, &place.Token, &place.Insecure, "the job's token, instead of one made up", jobsToken)
	f.StringVar(&place.Compress, "compress", "",
		"codecs of gradients and answers, as in rackweave bench, where the program names none (default: RACKWEAVE_COMPRESS, or none)")
	hosts.add(f)
	f.StringSliceVar(&hosts.env, "env", []string{"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"},
		"variables of this environment that workers get on --hosts")
	f.StringVar(&place.MasterAddr, "master-addr", "", "address of PyTorch's worker 0 with --hosts and --srun (default: the first host)")
	f.IntVar(&place.MasterPort, "master-port", 29500, "port of PyTorch's worker 0 with --hosts and --srun")
	f.BoolVar(&srun, "srun", false, "run the one worker that srun's variables say")
	f.StringVar(&serveConfig, "serve-config", "", "YAML file with flags of rackweave serve, for the command's own aggregator")
	f.DurationVar(&grace, "grace", 10*time.Second, "how long workers that are told to end may take")
	f.BoolVar(&asJSON, "json", false, "print every line of output, and in the end how each worker ended, as a line of JSON")
	return cmd
}

func runJob(ctx context.Context, place launch.Place, argv []string, serveConfig string, grace time.Duration, p *printer) error {
	signals := passedOn()
	defer signal.Stop(signals)
	name(&place)
	place.Compress = cmp.Or(place.Compress, os.Getenv("RACKWEAVE_COMPRESS"))
	if _, err := codec.ParsePair(place.Compress, true); err != nil {
		return fmt.Errorf("--compress: %w", err)
	}
	job := launch.Job{Argv: argv, Workers: place.Started(), First: place.First, Grace: grace, Signals: signals, Line: p.worker}
	if err := job.Check(); err != nil {
		return err
	}
	var err error
	if place.MasterAddr == "" {
		if place.MasterPort, err = launch.FreePort(); err != nil {
			return err
		}
	}
	var aggregator *launch.Server
	if place.Server == "" {
		if aggregator, err = serveFor(serveConfig, p); err != nil {
			return err
		}
		place.Server = aggregator.URL
		job.Lost = aggregator.Ended()
		job.LostWhy = aggregator.Err
	} else if err := answers(ctx, &place); err != nil {
		return err
	}
	proxy, err := control.Listen(place)
	var exits []launch.Exit
	if err == nil {
		usual := usualEnv(place.Started())
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

// answers returns why workers could not join the aggregators, which a program would find out only once it has loaded its framework.
func answers(ctx context.Context, place *launch.Place) error {
	for server := range strings.SplitSeq(place.Server, ",") {
		c := client.Config{Server: server, CA: place.CA, Token: place.Token, Insecure: place.Insecure, Timeout: 5 * time.Second}
		if _, err := client.Status(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// passedOn returns the signals to pass on to workers, which no longer end this process: it ends when its workers have.
func passedOn() chan os.Signal {
	signal.Reset(syscall.SIGINT, syscall.SIGTERM)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	return signals
}

// name sets a job's name, token and run where they are not given.
func name(place *launch.Place) {
	place.Job = cmp.Or(place.Job, "run-"+rand.Text()[:8])
	if place.Token == "" {
		place.Token, place.Insecure = rand.Text(), true // nobody's secret; it keeps other runs apart
	}
	place.Run = cmp.Or(place.Run, rand.Text())
}

// serveFor starts the command's own aggregator, from this same binary.
func serveFor(config string, p *printer) (*launch.Server, error) {
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
	p.print(strconv.Itoa(rank), &rank, from, line)
}

func (p *printer) aggregator(line []byte) error {
	p.print("aggregator", nil, launch.Stderr, line)
	return nil
}

// print prints a line of a worker, whose rank is not nil, or of another program.
func (p *printer) print(who string, rank *int, from launch.Stream, line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		_ = json.NewEncoder(p.out).Encode(outputLine{Rank: rank, Stream: from, Line: string(line)})
		return
	}
	to := p.out
	if from == launch.Stderr {
		to = p.err
	}
	fmt.Fprintf(to, "[%s] %s\n", who, line)
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
