package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
)

func statusCommand() *cobra.Command {
	var cfg client.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a running aggregator's jobs, workers, stragglers, memory and throughput per core",
		Example: `  rackweave status --server http://aggregator:7077
  rackweave status --server http://aggregator:7077 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := client.Status(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(s)
				if err != nil {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), json.RawMessage(text)) // protojson's own spaces differ from build to build
			}
			return printStatus(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringVar(&cfg.Server, "server", "http://127.0.0.1:7077", "URL of the aggregator")
	cmd.Flags().StringVar(&cfg.Token, "token", "", "the admin's token, or a job's to see that one")
	cmd.Flags().StringVar(&cfg.CA, "ca", "", "file with the certificates to trust, or sha256:FINGERPRINT, for https")
	cmd.Flags().DurationVar(&cfg.Timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printStatus(out io.Writer, s *api.StatusResponse) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "rackweave %s, up %v", s.Version, (time.Duration(s.UptimeSeconds) * time.Second))
	if s.Draining {
		fmt.Fprint(w, ", draining")
	}
	fmt.Fprintln(w)
	for _, e := range s.Engines {
		printEngine(w, e)
	}
	for _, j := range s.Jobs {
		printJob(w, j)
	}
	return w.Flush()
}

// printEngine prints a provider's lanes and devices.
func printEngine(w io.Writer, e *api.EngineStatus) {
	fmt.Fprintf(w, "\n%s\tdevice\tcpu\tnode\tin GB/s\tout GB/s\tchunks\tin progress\tdropped\tfailovers\n", e.Provider)
	for i, l := range e.Lanes {
		fmt.Fprintf(w, "  lane %d\t%s\t%d\t%d\t%.2f\t%.2f\t%d\t%d\t%d\t%d\n", i, l.Device, l.Cpu, l.Node,
			l.ReceivedBytesPerSecond/1e9, l.SentBytesPerSecond/1e9, l.Chunks, l.FoldsOpen, l.Dropped, l.Failovers)
	}
	for _, n := range e.Nics {
		link := "up"
		if !n.Up {
			link = "down"
		}
		fmt.Fprintf(w, "  %s is %s, with %d connections", n.Device, link, n.Connections)
		if n.FailedOver > 0 {
			fmt.Fprintf(w, ", %d of them failed over from other devices", n.FailedOver)
		}
		fmt.Fprintln(w)
	}
}

// printJob prints what a job takes, and its workers.
func printJob(w io.Writer, j *api.JobStatus) {
	fmt.Fprintf(w, "\njob %s: %s, %s %s over %s, %d workers, %d tensors, %s\n", j.Name, j.State, j.Mode, j.Optimizer, j.Provider,
		j.Workers, j.Tensors, report.Size(j.ModelBytes))
	if j.Mode == "stream" {
		fmt.Fprintf(w, "  policy: %s\n", j.Policy)
	}
	fmt.Fprintf(w, "  memory: parameters and optimizer state %s, slots %s, results %s\n", report.Size(j.ParameterBytes),
		report.Size(j.SlotBytes), report.Size(j.ResultBytes))
	for _, r := range j.Resources {
		if what, ok := strings.CutPrefix(r.Name, "bytes of "); ok {
			fmt.Fprintf(w, "  %s reserved: %s, and it may have %s in all\n", what, report.Size(r.Reserved), report.Size(r.Limit))
		} else {
			fmt.Fprintf(w, "  %s reserved: %d, and it may have %d in all\n", r.Name, r.Reserved, r.Limit)
		}
	}
	if j.Failure != nil {
		fmt.Fprintf(w, "  failed: %s\n", j.Failure.Text)
	}
	printMembers(w, j)
	printRacks(w, j)
	for _, m := range j.Members {
		if text := waits(m, j.Members); text != "" {
			fmt.Fprintf(w, "  worker %d waits for %s\n", m.Rank, text)
		}
	}
}

// printMembers prints a row for each worker.
func printMembers(w io.Writer, j *api.JobStatus) {
	stream := j.Mode == "stream"
	fmt.Fprint(w, "  worker\thost\tpid\treceived\tsent\tlast to come\tlateness\tawaited")
	if stream {
		fmt.Fprint(w, "\tstep\theld\tstaleness")
	}
	fmt.Fprintln(w)
	for _, m := range j.Members {
		fmt.Fprintf(w, "  %d\t%s\t%d\t%s\t%s\t%d\t%v\t%d", m.Rank, m.Host, m.Pid, report.Size(m.ReceivedBytes),
			report.Size(m.SentBytes), m.LastArrivals, (time.Duration(m.LatenessSeconds * 1e9)).Round(time.Microsecond), m.AwaitedChunks)
		if stream {
			held := (time.Duration(m.HeldSeconds * 1e9)).Round(time.Millisecond).String()
			fmt.Fprintf(w, "\t%d\t%s\t%.1f", m.Step, held, m.Staleness)
		}
		fmt.Fprintln(w)
	}
}

// printRacks prints how a job is spread over racks.
func printRacks(w io.Writer, j *api.JobStatus) {
	if len(j.Racks) == 0 {
		return
	}
	fmt.Fprintf(w, "  reduced above the rack: %s\n  rack\taggregator\tworkers\towns\treceived\tsent\tawaited\n", j.Shape)
	for _, r := range j.Racks {
		received, sent := report.Size(r.ReceivedBytes), report.Size(r.SentBytes)
		if r.Own {
			received, sent = "(this one)", ""
		}
		fmt.Fprintf(w, "  %s\t%s\t%d\t%s\t%s\t%s\t%d\n", r.Name, r.Url, r.Workers, report.Size(r.OwnedBytes), received, sent,
			r.AwaitedChunks)
	}
}

// waits says for whom a worker waits, and for how long.
func waits(m *api.WorkerStatus, members []*api.WorkerStatus) string {
	var all []string
	for _, rank := range m.WaitsFor {
		text := fmt.Sprintf("worker %d", members[rank].Rank)
		if m.Held {
			text += fmt.Sprintf(", step %d", members[rank].Step)
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%s, since %.1f s", strings.Join(all, " and "), m.WaitsSeconds)
}
