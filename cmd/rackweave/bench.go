package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/rows"
	"github.com/rackweave/rackweave/chunk"
)

// benchFlags are the flags of the exchange.
type benchFlags struct {
	modelFlags
	spec    bench.Spec
	workers []int
	hyper   []string
	hosts   hostsFlags
	compute time.Duration // of a step in a replay; if 0, the model's
}

// add adds the flags. The exchange is that of [modelFlags.add].
func (b *benchFlags) add(cmd *cobra.Command, usual, value string) {
	f := cmd.Flags()
	f.IntSliceVar(&b.workers, "workers", []int{4}, "workers; several numbers are measured one after another")
	f.StringVar(&b.spec.Provider, "provider", "auto", "transport: auto, shm, tcp or ibv")
	b.modelFlags.add(f, usual, value)
	f.Func("sparse", "instead of a model: exchange the rows that workers touch of an embedding, such as "+rows.Example+
		", which are the defaults but for zipf; touch: a share or a number; with zipf the k-th most frequent row has the weight k^-zipf; shuffle: rows are not in the order of their "+
		"frequencies; placed: the aggregator places them by their frequencies", func(text string) (err error) {
		b.spec.Rows, err = rows.Parse(text)
		return err
	})
	f.StringVar(&b.spec.ProviderOptions, "provider-options", "", "options of the transport's devices, as key=value,…")
	f.StringVar(&b.spec.Optimizer, "optimizer", "sum", "update rule the aggregator runs; sum: none")
	f.StringSliceVar(&b.hyper, "hyper", nil, "hyper-parameters, as lr=0.1,momentum=0.9,…")
	f.StringVar(&b.spec.Policy, "policy", "", "who waits for whom, such as ssp:s=3 (default: all wait for all)")
	f.StringVar(&b.spec.Outer, "outer", "",
		"racks train on their own and meet, for instance every=24,rule=nesterov,lr=0.7,momentum=0.9, or every=24,drift=0.02 (default: as their cluster's file says)")
	f.StringVar(&b.spec.Compress, "compress", "",
		"codecs of gradients and answers, such as int8, sign/int8 or topk:1%/none, or auto:budget=SHARE, for links that bind (default: none)")
	f.IntVar(&b.spec.Iters, "iters", 20, "measured exchanges")
	f.IntVar(&b.spec.Warmup, "warmup", 5, "exchanges before those")
	f.BoolVar(&b.spec.Arena, "arena", false, "gradients and results in registered memory (default: each worker's ordinary memory)")
	f.StringVar(&b.spec.Server, "server", "", "URL of a running aggregator, or of those of several racks: A,B; those of no cluster need --spread (default: one of its own, with the defaults of rackweave serve)")
	f.BoolVar(&b.spec.Spread, "spread", false, "the aggregators are not of racks: spread the model over them, as one cannot hold it")
	f.StringVar(&b.spec.Job, "job", "", "name of the job, where the aggregator serves listed jobs only (default: one made up)")
	accessFlags(cmd, &b.spec.CA, &b.spec.Token, &b.spec.Insecure, "the job's token", jobsToken)
	f.IntVar(&b.spec.ChunkBytes, "chunk-bytes", chunk.DefaultChunkBytes, "chunk size in bytes")
	f.StringSliceVar(&b.spec.NICs, "nics", nil, "RDMA devices, of workers and of the embedded aggregator (default: all with a link)")
	f.DurationVar(&b.spec.Jitter, "jitter", 0, "workers sleep up to this long before each exchange and submit in orders of their own")
}

// complete turns the flags into specs, one for each number of workers.
func (b *benchFlags) complete() ([]bench.Spec, error) {
	spec := b.spec
	var err error
	if spec.Sparse() && (b.model != "" || b.bytes != "" || b.f32Bytes != "") {
		return nil, errors.New("--sparse is given beside --model, --bytes or --f32-bytes: use one")
	}
	if spec.Model, spec.DType, err = b.read(); err != nil {
		return nil, err
	}
	if b.compute < 0 {
		return nil, fmt.Errorf("--compute %v: use 0 or more", b.compute)
	}
	if b.compute > 0 {
		spec.Model = spec.Model.Computing(b.compute)
	}
	if spec.Hyper, err = hyperOf(b.hyper); err != nil {
		return nil, err
	}
	spec.Apart = len(b.hosts.list) > 0
	var specs []bench.Spec
	for _, spec.Workers = range b.workers {
		if err := spec.Check(); err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// onHosts takes the numbers of workers from the hosts that run them, and returns the start of a worker's command. If it is nil,
// they run here.
func (b *benchFlags) onHosts(cmd *cobra.Command) (enter func(rank int) []string, err error) {
	if len(b.hosts.list) == 0 {
		return nil, nil
	}
	if err := b.hosts.check(cmd, false, b.spec.Server); err != nil {
		return nil, err
	}
	hosts, workers, err := hostsOf(b.hosts.list)
	if err != nil {
		return nil, err
	}
	b.workers = []int{workers}
	ssh := strings.Fields(b.hosts.ssh)
	return func(rank int) []string {
		i := slices.IndexFunc(hosts, func(h *host) bool { return rank < h.first+h.n })
		return append(ssh[:len(ssh):len(ssh)], hosts[i].name)
	}, nil
}

func hyperOf(settings []string) (map[string]float64, error) {
	hyper := map[string]float64{}
	for _, s := range settings {
		name, text, _ := strings.Cut(s, "=")
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("hyper-parameter %q: use NAME=NUMBER", s)
		}
		hyper[name] = v
	}
	return hyper, nil
}

func benchCommand() *cobra.Command {
	var b benchFlags
	var jsonFile string
	var noRoofline, flood bool
	var jobs int
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Exchange a model's gradients with infinitely fast compute and measure it",
		Long: `Exchange a model's gradients with infinitely fast compute and measure it, in the terms of nccl-tests. The most that this
machine can do of such an exchange is measured in the same run, and the result is printed as a share of it.
With --replay workers compute as long as the model's layers do, by sleeping: gradients are pushed while the backward pass goes on,
and each layer's forward pass waits for its own parameters. The step's time is printed in parts.
With --sparse workers exchange rows of an embedding. With an optimizer each pushes the rows that it touches and pulls those of its
next step, as with a kvstore; without one it gets the sums of all rows that any worker touches.
With --jobs several jobs exchange side by side, or all but the last beside one that floods, by turns with one job alone: what each
gets of its weight's share, and all of what one moves. A flood takes processors of this machine, too: to tell that from what it
takes in the aggregator, it floods another one by turns, and p99/apart compares with that.`,
		Example: `  rackweave bench
  rackweave bench --model bert-large --workers 8 --optimizer adamw_torch --verify
  rackweave bench --provider tcp --bytes 100MB --dtype bf16 --json result.json
  rackweave bench --bytes 100MB --workers 1,2,4,8
  rackweave bench --optimizer sgd_torch --policy ssp:s=3 --jitter 20ms
  rackweave bench --provider tcp --bytes 100MB --compress int8 --verify
  rackweave bench --server http://aggregator:7077 --workers 2
  rackweave bench --server https://aggregator:7077 --ca aggregator.pem --job resnet --token-file token
  rackweave bench --server http://aggregator-a:7077 --hosts a:3,b:1
  rackweave bench --replay --model resnet50 --workers 8
  rackweave bench --sparse rows=1000000,width=64,touch=1%,zipf=1.1 --verify
  rackweave bench --sparse rows=1000000,touch=1% --optimizer sgd_mxnet
  rackweave bench --jobs 4 --workers 1 --bytes 16MB
  rackweave bench --jobs 2 --flood --workers 1 --bytes 1MB
  rackweave bench compare --with gloo,mpi`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			enter, err := b.onHosts(cmd)
			if err != nil {
				return err
			}
			specs, err := b.complete()
			if err == nil {
				err = checkOutput(jsonFile)
			}
			if err != nil {
				return err
			}
			noRoofline = noRoofline || b.spec.Replay || b.spec.Sparse() || specs[0].Apart
			runner, err := newRunner(cmd)
			if err != nil {
				return err
			}
			runner.Enter = enter
			if jobs < 1 {
				return fmt.Errorf("%d jobs: use 1 or more", jobs)
			}
			if jobs > 1 || flood {
				if len(specs) > 1 {
					return errors.New("several jobs side by side have one number of workers each: give --workers once")
				}
				res, err := runner.RunJobs(cmd.Context(), bench.Jobs{Spec: specs[0], N: max(jobs, 2), Flood: flood})
				if err != nil {
					return err
				}
				return printReport(cmd, jsonFile, &res, func(w io.Writer) { report.WriteJobs(w, &res) })
			}
			var results []report.Result
			for _, spec := range specs {
				res, err := runner.Run(cmd.Context(), spec)
				if err != nil {
					return err
				}
				if !noRoofline {
					if err := bench.MeasureRoofline(cmd.Context(), &spec, &res); err != nil {
						fmt.Fprintln(cmd.ErrOrStderr(), "no share of what the machine can do:", err)
					}
				}
				results = append(results, res)
			}
			return printResults(cmd, results, jsonFile)
		},
	}
	b.add(cmd, "model", "resnet50")
	b.hosts.add(cmd.Flags())
	cmd.Flags().BoolVar(&b.spec.Verify, "verify", false, "compute everything again in plain Go and compare bits")
	cmd.Flags().BoolVar(&b.spec.Replay, "replay", false,
		"compute as long as the model's layers do, and overlap that with the exchange")
	cmd.Flags().DurationVar(&b.compute, "compute", 0,
		"what forward and backward pass take in a replay; if 0, the model's published time")
	cmd.Flags().StringVar(&jsonFile, "json", "",
		"write the result as JSON to this file (-: standard output); of several numbers of workers, a list")
	cmd.Flags().IntVar(&jobs, "jobs", 1, "jobs that exchange side by side")
	cmd.Flags().BoolVar(&flood, "flood", false, "the last of the jobs exchanges far more than the others")
	cmd.Flags().BoolVar(&noRoofline, "no-roofline", false, "do not measure what the machine could do")
	cmd.AddCommand(compareCommand(), learnCommand())
	return cmd
}

// newRunner starts worker and aggregator processes from this same binary.
func newRunner(cmd *cobra.Command) (*bench.Runner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to start workers from it: %w", err)
	}
	return &bench.Runner{
		Worker: []string{self, "bench-worker"}, Serve: []string{self, "serve", "--log-level", "warn"}, Log: cmd.ErrOrStderr(),
		Progress: cmd.ErrOrStderr(),
		Started: func(url string) {
			urls := strings.Split(url, ",")
			fmt.Fprintf(cmd.ErrOrStderr(), "aggregator at %s, metrics at %s/metrics\n", strings.Join(urls, ", "),
				strings.Join(urls, "/metrics, "))
		},
	}, nil
}

// workerCommand is the command of the benchmark's worker processes.
func workerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "bench-worker", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.WorkerMain(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// checkOutput reports whether a file can be written, before the work for it begins.
func checkOutput(name string) error {
	if name == "" || name == "-" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// output opens a file to write to, "-" being standard output.
func output(cmd *cobra.Command, name string, write func(io.Writer) error) error {
	if name == "-" {
		return write(cmd.OutOrStdout())
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// printResults prints a table, or JSON: an object for one result, a list for several.
func printResults(cmd *cobra.Command, results []report.Result, jsonFile string) error {
	var v any = results
	if len(results) == 1 {
		v = &results[0]
	}
	err := printReport(cmd, jsonFile, v, func(w io.Writer) {
		write := report.WriteTable
		if results[0].Replay != nil {
			write = report.WriteReplay
		}
		write(w, results)
		for _, res := range results {
			fmt.Fprintf(w, "# workers=%d: checksum of the final results %s", res.Workers, res.Checksum)
			if res.Verified {
				fmt.Fprintf(w, ", plain Go %s", res.Reference)
			}
			fmt.Fprintln(w)
			if res.Codecs != nil {
				fmt.Fprintf(w, "# workers=%d: %v\n", res.Workers, res.Codecs)
			}
			if res.Rows != nil {
				fmt.Fprintf(w, "# workers=%d: %v\n", res.Workers, res.Rows)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, res := range results {
		if res.Wrong > 0 || res.Verified && res.Checksum != res.Reference {
			return fmt.Errorf("with %d workers tensors of %d elements differ from plain Go", res.Workers, res.Wrong)
		}
	}
	return nil
}
