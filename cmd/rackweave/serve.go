package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/membership"
)

func serveCommand() *cobra.Command {
	var o service.Options
	var jobs, options []string
	var logLevel, clusterFile, rack string
	var asJSON, untilEOF bool
	var where etcdOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the aggregator",
		Long: `Run the aggregator. It finds its NICs, NUMA nodes and cores by itself and lists them. One port serves gRPC and
HTTP+JSON, health, reflection, Prometheus metrics (/metrics) and profiles (/debug/pprof/).

Interrupted or terminated it ends at once: its jobs fail, and their workers are told. "rackweave drain" lets the jobs end first.`,
		Example: `  rackweave serve
  rackweave serve --listen :7077 --providers ibv --nics mlx5_0,mlx5_1 --cores 16 --checkpoint-dir /var/lib/rackweave
  rackweave serve --listen :7077
  rackweave serve --listen :7077 --tls-cert aggregator.pem --tls-key aggregator.key --jobs-file jobs
  rackweave serve --listen :7077 --cluster cluster.yaml --rack a --etcd embed --etcd-dir /var/lib/rackweave/etcd
  rackweave serve --config /etc/rackweave.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			log := newPatientLog(cmd.ErrOrStderr())
			defer log.Close()
			if o.Log, err = logger(log, logLevel, asJSON); err != nil {
				return err
			}
			o.Jobs = map[string]string{}
			for _, j := range jobs {
				name, token, ok := strings.Cut(j, "=")
				if !ok || token == "" {
					return fmt.Errorf("job %q: use NAME=TOKEN", name)
				}
				if _, twice := o.Jobs[name]; twice {
					return fmt.Errorf("job %q is listed twice", name)
				}
				o.Jobs[name] = token
			}
			o.ProviderOptions = map[string]string{}
			for _, p := range options {
				name, text, ok := strings.Cut(p, ":")
				if !ok {
					return fmt.Errorf("provider options %q: use PROVIDER:key=value,…", p)
				}
				o.ProviderOptions[name] = text
			}
			if o.Cluster, err = readCluster(clusterFile, rack, where.where != ""); err != nil {
				return err
			}
			m, err := where.open(cmd.Context(), o.Cluster, o.Log, o.Insecure)
			if err != nil {
				return err
			}
			if m != nil {
				defer m.close()
			}
			if o.Cluster != nil && !cmd.Flags().Changed("listen") {
				o.Listen = o.Cluster.Listen(o.Listen)
			}
			o.Version = version
			// Whoever reads the log may end, and a terminal may close: the aggregator goes on.
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			return serve(cmd.Context(), o, m, cmd.OutOrStdout(), asJSON, untilEOF)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", service.DefaultListen, "address to listen on; port 0: any (with --cluster: that of the rack's url in the file)")
	f.StringSliceVar(&o.Providers, "providers", nil, "transports to serve: ibv, shm, tcp (default: every one with a device here)")
	f.StringArrayVar(&options, "provider-options", nil, "options of a transport, as PROVIDER:key=value,…")
	f.StringSliceVar(&o.NICs, "nics", nil, "RDMA devices to serve (default: all)")
	f.IntVar(&o.Cores, "cores", 0, "cores that aggregate; if 0, chosen as rackweave topo shows")
	f.BoolVar(&o.Unpinned, "unpinned", false, "let the aggregating loops float over the cores")
	f.IntVar(&o.Window, "window", 0, "messages in flight per worker and core; if 0, as suits the transport")
	f.DurationVar(&o.LinkTimeout, "link-timeout", 0, "how long a link may be down before its workers count as lost; if 0, 5s")
	f.StringVar(&o.TLSCert, "tls-cert", "", "certificate file, PEM")
	f.StringVar(&o.TLSKey, "tls-key", "", "key file, PEM")
	f.StringSliceVar(&jobs, "jobs", nil, "jobs with tokens, as NAME=TOKEN,…; only those run")
	secret(cmd, "jobs", "the jobs that may run, each with its token, as NAME=TOKEN; only those run")
	f.BoolVar(&o.Encrypt, "encrypt", false, "encrypt payloads over tcp by the kernel's TLS, and do not serve ibv, which cannot")
	f.BoolVar(&o.Insecure, "insecure", false, "serve other hosts without TLS and tokens")
	keysFlag(cmd.Flags(), &o.Keys)
	f.IntVar(&o.Quota.Workers, "max-job-workers", 0, "most workers of a job; if 0, 1024")
	f.Int64Var(&o.Quota.MemoryBytes, "max-job-memory", 0, "most bytes of memory of a job; if 0, all but an eighth of what is free")
	f.Int64Var(&o.Quota.CheckpointBytes, "max-job-checkpoints", 0, "most bytes of a job's checkpoints; if 0, what the disk holds")
	f.IntVar(&o.MaxJobs, "max-jobs", 0, "most jobs at once; if 0, 64")
	f.StringVar(&o.CheckpointDir, "checkpoint-dir", "", "directory of saved parameters; if empty, saving is refused")
	f.StringVar(&o.DataDir, "data-dir", "", "directory of manifests of training sets, as rackweave data shard makes them")
	f.StringVar(&o.AdminToken, "admin-token", "", "token that drain and profiles need; if empty, only this user may, over the Unix socket")
	secret(cmd, "admin-token", "the token that drain and profiles need", adminsToken)
	f.StringVar(&clusterFile, "cluster", "", "YAML file of the racks whose aggregators reduce among themselves; if empty, this one is alone")
	f.StringVar(&rack, "rack", "", "this aggregator's rack, by its name in the cluster's file")
	etcdFlags(cmd, &where)
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&asJSON, "json", false, "log JSON")
	f.BoolVar(&untilEOF, "until-eof", false, "end when standard input does: print only the URL, for programs that start an aggregator")
	return cmd
}

func serve(ctx context.Context, o service.Options, m *member, out io.Writer, asJSON, untilEOF bool) error {
	processors := runtime.GOMAXPROCS(0)
	s, err := service.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	runtime.GOMAXPROCS(processors + s.Lanes())
	s.HandleAdmin("/debug/pprof/", http.HandlerFunc(pprof.Index))
	s.HandleAdmin("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
	s.HandleAdmin("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
	s.HandleAdmin("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
	ctx, cancel := context.WithCancelCause(ctx)
	if untilEOF {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel(nil)
		}()
	}
	wait := m.keep(ctx, s.URLs()[0], cancel)
	said := make(chan error, 1)
	go func() {
		defer close(said)
		m.settle(ctx)
		if ctx.Err() != nil {
			return // its rack is another's, for instance
		}
		if err := announce(s, out, asJSON, untilEOF); err != nil {
			said <- err
			cancel(err)
		}
	}()
	err = s.Serve(ctx)
	refused := context.Cause(ctx)
	cancel(nil)
	wait()
	if errors.Is(refused, membership.ErrTaken) || errors.Is(refused, membership.ErrDiffers) {
		err = errors.Join(refused, err)
	}
	return errors.Join(<-said, err)
}

// announce prints the aggregator's addresses. Only JSON that cannot be written is an error: people do without.
func announce(s *service.Service, out io.Writer, asJSON, untilEOF bool) error {
	switch {
	case untilEOF:
		fmt.Fprintln(out, s.URL())
		return nil
	case asJSON:
		return json.NewEncoder(out).Encode(map[string]any{"url": s.URL(), "urls": s.URLs(), "providers": s.Providers(),
			"fingerprint": s.Fingerprint(), "admin_token_file": s.AdminFile()})
	}
	urls := s.URLs()
	fmt.Fprintf(out, "listening on %s", strings.Join(urls, ", "))
	if len(s.Providers()) > 0 {
		fmt.Fprintf(out, "; transports %s", strings.Join(s.Providers(), ", "))
	}
	fmt.Fprintf(out, "\nmetrics at %s/metrics\n", urls[0])
	if f := s.Fingerprint(); f != "" {
		fmt.Fprintf(out, "certificate %s\n", f)
	}
	if f := s.AdminFile(); f != "" {
		fmt.Fprintf(out, "admin's token in %s; make one for each job by rackweave token make JOB\n", f)
	}
	return nil
}
