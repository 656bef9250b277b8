package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
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
	cmd := printing(&cobra.Command{
		Use:   "status",
		Short: "Show a running aggregator's jobs, workers, stragglers, memory and throughput per core",
		Example: `  rackweave status --server http://aggregator:7077
  rackweave status --server http://aggregator:7077 --json`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		s, err := client.Status(cmd.Context(), cfg)
		if err != nil {
			return nil, nil, err
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(s)
		// protojson's own spaces differ from build to build.
		return json.RawMessage(text), func(w io.Writer) { printStatus(w, s) }, err
	})
	aggregatorFlags(cmd, &cfg, "the admin's token, or a job's to see that one", adminsToken, jobsToken)
	timeoutFlag(cmd, &cfg)
	return cmd
}

func printStatus(out io.Writer, s *api.StatusResponse) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "rackweave %s, up %v", s.Version, (time.Duration(s.UptimeSeconds) * time.Second))
	if s.Draining {
		fmt.Fprint(w, ", draining")
	}
	fmt.Fprintln(w)
	printMembership(w, s.Membership)
	for _, e := range s.Engines {
		printEngine(w, e)
	}
	for _, j := range s.Jobs {
		printJob(w, j)
	}
	w.Flush()
}

// printMembership prints which aggregator serves which rack of the cluster, where etcd keeps that.
func printMembership(w io.Writer, m *api.Membership) {
	if m == nil {
		return
	}
	fmt.Fprintf(w, "cluster: plan of epoch %d, decided by the aggregator of rack %s", m.Epoch, m.Leader)
	if !m.Reachable {
		fmt.Fprintf(w, "; etcd does not answer, the lease was renewed %.1f s ago", m.LeaseSeconds)
	}
	fmt.Fprintln(w)
	if m.Refusal != "" {
		fmt.Fprintf(w, "  no job may begin: %s\n", m.Refusal)
	}
	for _, r := range m.Racks {
		text := fmt.Sprintf("%s, token %d", r.Url, r.Token)
		switch {
		case r.Out:
			text = "nobody serves it, and jobs go on without it"
		case r.Url == "":
			text = "nobody serves it"
		case r.Own:
			text += " (this one)"
		}
		fmt.Fprintf(w, "  rack %s: %s\n", r.Name, text)
	}
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
	if j.State == "retained" {
		fmt.Fprintf(w, "\njob %s: failed %.0f s ago, its state after step %d or later is kept for its next run: %s\n", j.Name, j.AgeSeconds,
			j.WholeStep, report.Size(j.ParameterBytes))
		return
	}
	over := ""
	if j.Provider != "" { // else no worker has connected yet
		over = " over " + j.Provider
	}
	fmt.Fprintf(w, "\njob %s: %s, %s %s%s, %d workers, %d tensors, %s\n", j.Name, j.State, j.Mode, j.Optimizer, over, j.Workers,
		j.Tensors, report.Size(j.ModelBytes))
	if j.Mode == "stream" {
		fmt.Fprintf(w, "  policy: %s%s\n", j.Policy, change(j))
		if j.Drift != nil {
			fmt.Fprintf(w, "  drift %.3g of the parameters' length from a worker's reading of them to its gradient\n", j.Drift.Drift)
		}
	}
	fmt.Fprintf(w, "  memory: parameters and optimizer state %s, slots %s, results %s\n", report.Size(j.ParameterBytes),
		report.Size(j.SlotBytes), report.Size(j.ResultBytes))
	for _, r := range j.Resources {
		amount := func(n uint64) string { return strconv.FormatUint(n, 10) }
		if r.Unit == "bytes" {
			amount = report.Size
		}
		fmt.Fprintf(w, "  %s reserved: %s, and it may have %s in all\n", r.Name, amount(r.Reserved), amount(r.Limit))
	}
	if j.Failure != nil {
		fmt.Fprintf(w, "  failed: %s\n", j.Failure.Text)
	}
	printMembers(w, j)
	printCodecs(w, j)
	printSparse(w, j)
	printRacks(w, j)
	if j.Parts > 1 {
		fmt.Fprintf(w, "  part %d of %d: the job is spread over several aggregators, to which all its workers send\n", j.Part+1, j.Parts)
	}
	for _, m := range j.Members {
		if text := waits(m, j.Members); text != "" {
			fmt.Fprintf(w, "  worker %d waits for %s\n", m.Rank, text)
		}
	}
}

// change returns the policy that decides next and the workers that it waits for, as text.
func change(j *api.JobStatus) string {
	if j.NextPolicy == "" {
		return ""
	}
	var behind []string
	for _, m := range j.Members {
		if m.Step < j.NextPolicyStep && !m.Left {
			behind = append(behind, fmt.Sprintf("%d (step %d)", m.Rank, m.Step))
		}
	}
	return fmt.Sprintf("; %s from step %d on, when these workers have reached it: %s", j.NextPolicy, j.NextPolicyStep,
		strings.Join(behind, ", "))
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

// printCodecs prints, for each worker, what codecs make of its gradients and of the answers to it.
func printCodecs(w io.Writer, j *api.JobStatus) {
	if j.Compress == "" || j.Compress == "none" {
		return
	}
	fmt.Fprintf(w, "  codecs: %s\n  worker\tgradients\tof raw\tdistortion\tresidual of a chunk\tsent raw", j.Compress)
	fmt.Fprintln(w, "\tanswers\tof raw\tdistortion\tresidual of a chunk\tsent raw")
	for _, m := range j.Members {
		fmt.Fprintf(w, "  %d\t%s\t%s\n", m.Rank, coding(m.Gradients), coding(m.Answers))
	}
	if n := len(j.Decisions); n > 0 {
		fmt.Fprintf(w, "  tensors' codecs, decision %s\n", j.Decisions[n-1])
	}
	if j.PendingDecision != "" {
		fmt.Fprintf(w, "  not yet accepted by all workers: decision %s\n", j.PendingDecision)
	}
	for _, m := range j.Members {
		if m.LinkBytesPerSecond > 0 {
			fmt.Fprintf(w, "  worker %d's link\t%.3g Mb/s\n", m.Rank, m.LinkBytesPerSecond*8e-6)
		}
	}
}

// coding returns the columns of one direction.
func coding(c *api.Coding) string {
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	return fmt.Sprintf("%s\t%.3f\t%.2g\t%.2g\t%d", report.Size(c.GetBytes()), ratio(float64(c.GetBytes()), float64(c.GetRawBytes())),
		ratio(c.GetLost(), c.GetEnergy()), math.Sqrt(ratio(c.GetLost(), float64(c.GetPayloads()-c.GetRawPayloads()))), c.GetRawPayloads())
}

// printSparse prints, for each sparse tensor, what a step touches of it.
func printSparse(w io.Writer, j *api.JobStatus) {
	for _, t := range j.Sparse {
		if t.Steps == 0 {
			continue
		}
		merged, steps := float64(t.MergedRows)/float64(t.Steps), float64(t.Steps)
		fmt.Fprintf(w, "  sparse %s: %d steps; of %d rows a worker touches %.0f, all together %.0f (%.3g%%); %s sent, %.3g of dense\n", t.Name,
			t.Steps, t.Rows, float64(t.ListedRows)/steps/float64(j.Workers), merged, 100*merged/float64(t.Rows), report.Size(t.ListedBytes),
			float64(t.ListedBytes)/float64(t.DenseBytes))
		for _, c := range t.Hottest {
			fmt.Fprintf(w, "    rows %d to %d: %.1f touched a step\n", c.FirstRow, c.FirstRow+c.Rows-1, float64(c.MergedRows)/steps)
		}
	}
}

// printRacks prints how a job is spread over racks.
func printRacks(w io.Writer, j *api.JobStatus) {
	if len(j.Racks) == 0 {
		return
	}
	if j.Outer != "" {
		fmt.Fprintf(w, "  racks train on their own and meet: %s\n", j.Outer)
	}
	if d := j.Drift; d != nil {
		fmt.Fprintf(w, "  drift %.3g of the parameters' length, of %v allowed: chunks meet every %d to %d steps, every %.1f on average\n", d.Drift,
			d.Threshold, d.LeastInterval, d.MostInterval, d.MeanInterval)
	}
	buddies := slices.ContainsFunc(j.Racks, func(r *api.RackStatus) bool { return r.Buddy != "" })
	if buddies {
		fmt.Fprintf(w, "  racks keep each other's state: step %d is whole here\n", j.WholeStep)
	}
	fmt.Fprintf(w, "  reduced above the rack: %s\n", j.Shape)
	if j.ShapeReason != "" {
		fmt.Fprintf(w, "  because: %s\n", j.ShapeReason)
	}
	if j.ShapeWarning != "" {
		fmt.Fprintf(w, "  warning: %s\n", j.ShapeWarning)
	}
	fmt.Fprint(w, "  rack\taggregator\tworkers\towns\treceived\tsent\tawaited")
	if buddies {
		fmt.Fprint(w, "\tbuddy")
	}
	fmt.Fprintln(w)
	for _, r := range j.Racks {
		received, sent := report.Size(r.ReceivedBytes), report.Size(r.SentBytes)
		if r.Own {
			received, sent = "(this one)", ""
		}
		fmt.Fprintf(w, "  %s\t%s\t%d\t%s\t%s\t%s\t%d", r.Name, r.Url, r.Workers, report.Size(r.OwnedBytes), received, sent,
			r.AwaitedChunks)
		if buddies {
			fmt.Fprintf(w, "\t%s", r.Buddy)
		}
		fmt.Fprintln(w)
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
