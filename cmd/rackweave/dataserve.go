package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
)

func dataServeCommand() *cobra.Command {
	o := service.Options{Beside: &service.Beside{}}
	var logLevel string
	var asJSON, untilEOF bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Deal the rows of training sets to workers that no aggregator serves, or that are in several racks",
		Long: `Deal the rows of training sets to workers that no aggregator serves, or that are in several racks. Workers open a set under
their job's name, with their rank. An aggregator deals rows to the workers of its jobs by itself.

With --journal the service writes down what it deals, and goes on from there when it is started again, even if it was killed:
workers repeat their last call. A machine that loses power may lose the last second. --replay deals each worker the batches
that a journal recorded for it: a run in which fast workers took more can be made again with the same bits.`,
		Example: `  rackweave data serve --journal rows.journal
  rackweave data serve --listen :7078 --data-dir /srv/manifests --journal rows.journal
  rackweave data serve --replay rows.journal`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			read, _ := os.Stat(o.Beside.Replay)
			written, _ := os.Stat(o.Beside.Journal)
			switch b := o.Beside; {
			case b.LeaseTimeout < service.LeastLease:
				return fmt.Errorf("--lease-timeout %v: use %v or more", b.LeaseTimeout, service.LeastLease)
			case b.JournalBytes < 4096:
				return fmt.Errorf("--journal-bytes %d: use 4096 or more", b.JournalBytes)
			case os.SameFile(read, written):
				return fmt.Errorf("--journal %s: --replay reads it: name another file", b.Journal)
			}
			log := newPatientLog(cmd.ErrOrStderr())
			defer log.Close()
			if o.Log, err = logger(log, logLevel, asJSON); err != nil {
				return err
			}
			o.Version = version
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			return serve(cmd.Context(), o, nil, cmd.OutOrStdout(), asJSON, untilEOF)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:7078", "address to listen on; port 0: any")
	f.StringVar(&o.DataDir, "data-dir", "", "directory of manifests of training sets, as rackweave data shard makes them")
	f.StringVar(&o.Beside.Journal, "journal", "", "file for what is dealt, to go on from; if empty, what is dealt is lost with the service")
	f.Int64Var(&o.Beside.JournalBytes, "journal-bytes", 1<<30, "most bytes of the journal; a full one deals nothing")
	f.StringVar(&o.Beside.Replay, "replay", "", "journal of a run whose batches are dealt again")
	f.DurationVar(&o.Beside.LeaseTimeout, "lease-timeout", time.Minute,
		"how long a worker may not call before its rows are dealt to others; at least 10s")
	f.StringVar(&o.TLSCert, "tls-cert", "", "certificate file, PEM")
	f.StringVar(&o.TLSKey, "tls-key", "", "key file, PEM")
	f.BoolVar(&o.Insecure, "insecure", false, "serve other hosts without TLS and tokens")
	keysFlag(f, &o.Keys)
	f.StringVar(&o.AdminToken, "admin-token", "", "token that profiles need; if empty, only this user may, over the Unix socket")
	secret(cmd, "admin-token", "the token that profiles need", adminsToken)
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&asJSON, "json", false, "log JSON")
	f.BoolVar(&untilEOF, "until-eof", false, "end when standard input does: print only the URL, for programs that start the service")
	return cmd
}

func dataStatusCommand() *cobra.Command {
	var cfg client.Config
	cmd := printing(&cobra.Command{
		Use:   "status",
		Short: "Show how far jobs have come in their training sets, and which workers take how much",
		Example: `  rackweave data status
  rackweave data status --server http://127.0.0.1:7078 --json`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		s, err := client.DataStatus(cmd.Context(), cfg)
		if err != nil {
			return nil, nil, err
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(s)
		return json.RawMessage(text), func(w io.Writer) { printSets(w, s.Sets) }, err
	})
	aggregatorFlags(cmd, &cfg, "the admin's token, or a job's to see that one", adminsToken, jobsToken)
	timeoutFlag(cmd, &cfg)
	return cmd
}

func printSets(out io.Writer, sets []*api.DataSetStatus) {
	if len(sets) == 0 {
		fmt.Fprintln(out, "no sets are open")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range sets {
		d := s.State
		total, unit := d.Rows, "rows"
		if d.Step > 0 {
			total, unit = (d.Rows+d.Step-1)/d.Step, "steps"
		}
		fmt.Fprintf(w, "job %s, set %s: %s of seed %d, epoch %d, %d of %d %s are applied\n", s.Job, d.Set, d.Deal, d.Seed, d.Epoch, d.Cursor, total, unit)
		fmt.Fprintln(w, "  worker\trows since it opened the set\tnext batch")
		for rank, n := range s.Dealt {
			state := ""
			if !s.Open[rank] {
				state = "\tno session"
			}
			fmt.Fprintf(w, "  %d\t%d\t%d%s\n", rank, n, s.Batches[rank], state)
		}
	}
	w.Flush()
}
