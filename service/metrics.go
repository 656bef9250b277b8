package service

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
)

// labelled adds metrics with the same labels to a collection.
type labelled struct {
	out           chan<- prometheus.Metric
	names, values []string // of the labels
}

type number interface{ int | int64 | uint64 | float64 }

func counter[N number](m labelled, name, help string, value N) {
	m.out <- prometheus.MustNewConstMetric(m.desc(name, help), prometheus.CounterValue, float64(value), m.values...)
}

func gauge[N number](m labelled, name, help string, value N) {
	m.out <- prometheus.MustNewConstMetric(m.desc(name, help), prometheus.GaugeValue, float64(value), m.values...)
}

func (m labelled) desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("rackweave_"+name, help, m.names, nil)
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func seconds[N int64 | uint64](ns N) float64 { return float64(ns) / 1e9 }

// pageEvery is the least time between two renderings of the metrics. A request in between gets the same page.
const pageEvery = 250 * time.Millisecond

// metricsPage serves the metrics of the service, the process and the Go runtime. A page is rendered before it is sent, so that a
// reader who takes none of it holds nothing up.
func (s *Service) metricsPage() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var mu sync.Mutex
	var page []byte
	var rendered time.Time
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	current := func() ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(rendered) < pageEvery {
			return page, nil
		}
		families, err := r.Gather()
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		encode := expfmt.NewEncoder(&b, format)
		for _, f := range families {
			if err := encode.Encode(f); err != nil {
				return nil, err
			}
		}
		page, rendered = b.Bytes(), time.Now()
		return page, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text, err := current()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(format))
		w.Write(text)
	})
}

// collector gives the service's metrics to a registry. A scrape reads what the lanes have published and costs them nothing, but
// for the drift of racks that train apart and of mode stream.
type collector struct{ s *Service }

// Describe implements prometheus.Collector. Metrics are described as they are collected.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	m := labelled{out: out}
	counter(m, "jobs_started_total", "Jobs that ran.", c.s.jobs.Started.Load())
	counter(m, "jobs_failed_total", "Jobs that failed.", c.s.jobs.Failed.Load())
	gauge(m, "stranger_connections", "Connections of peers who have shown no session.", c.s.door.Strangers())
	gauge(m, "uptime_seconds", "Time since the aggregator started.", time.Since(c.s.start).Seconds())
	if standing, dynamic := c.s.cluster.Standing(); dynamic {
		collectMembership(m, &standing)
	}
	m.names = []string{"reason"}
	for reason, n := range c.s.refusals.All() {
		m.values = []string{reason}
		counter(m, "refused_total", "Connections and calls that were turned away, by reason.", n)
	}
	for _, p := range c.s.engines.Served {
		collectEngine(c.s.engines.By[p], out)
	}
	for _, j := range c.s.jobs.RunningJobs() {
		collectJob(j, out)
	}
}

// collectMembership is for an aggregator whose cluster's membership etcd keeps.
func collectMembership(m labelled, s *racks.Standing) {
	gauge(m, "cluster_plan_epoch", "Revision at which etcd's plan of the cluster was decided.", s.Plan.Epoch)
	gauge(m, "cluster_etcd_up", "Whether etcd answers: 1 or 0.", oneIf(s.Store.Reachable))
	gauge(m, "cluster_lease_age_seconds", "Time since the aggregator's lease was renewed, -1 if it never was.", s.Store.Seconds)
	gauge(m, "cluster_jobs_may_begin", "Whether jobs may begin here: 1 or 0. Running jobs go on.", oneIf(s.Refusal == nil))
	gauge(m, "cluster_racks_served", "Racks of the plan that have an aggregator.", s.Plan.Served())
}

func collectEngine(e *engine.Engine, out chan<- prometheus.Metric) {
	for nic, d := range e.Devices {
		m := labelled{out, []string{"provider", "device"}, []string{e.Provider, d.Attr().Name}}
		gauge(m, "nic_up", "Whether the NIC's link is up: 1 or 0.", oneIf(e.Links.IsUp(nic)))
	}
	for i, l := range e.Agg.Lanes() {
		collectLane(labelled{out, []string{"provider", "lane", "device", "cpu"},
			[]string{e.Provider, strconv.Itoa(i), e.Names[i], strconv.Itoa(l.Config.CPU)}}, l.Counters())
	}
}

func collectLane(m labelled, c aggregate.Counters) {
	counter(m, "lane_received_bytes_total", "Bytes of messages from workers.", c.RecvBytes)
	counter(m, "lane_sent_bytes_total", "Bytes of answers to workers.", c.SentBytes)
	counter(m, "lane_racks_received_bytes_total", "Bytes of sums and results from the aggregators of other racks.", c.AboveRecvBytes)
	counter(m, "lane_racks_sent_bytes_total", "Bytes of sums and results to the aggregators of other racks.", c.AboveSentBytes)
	counter(m, "lane_messages_total", "Messages from workers.", c.Messages)
	counter(m, "lane_answers_total", "Answers to workers.", c.Answers)
	counter(m, "lane_chunks_total", "Chunks aggregated.", c.Chunks)
	counter(m, "lane_doorbells_total", "Posts to send queues.", c.Doorbells)
	counter(m, "lane_rounds_total", "Rounds of the loop that found work.", c.Rounds)
	counter(m, "lane_sleeps_total", "Times the loop slept.", c.Sleeps)
	counter(m, "lane_sampled_fold_seconds_total", "Time in sums and optimizer of the sampled chunks.", seconds(c.FoldNS))
	counter(m, "lane_sampled_post_seconds_total", "Time in posting the answers of the sampled chunks.", seconds(c.PostNS))
	counter(m, "lane_sampled_chunks_total", "Chunks whose times were taken.", c.Samples)
	counter(m, "lane_deferred_total", "Answers that had to wait for queue or buffer space.", c.Deferred)
	counter(m, "lane_give_backs_total", "Chunks given back to relieve workers that push in different orders.", c.NACKs)
	counter(m, "lane_wants_total", "Chunks asked of workers that others had pushed before them.", c.Requests)
	counter(m, "lane_breaks_total", "Connections whose queue pair failed and that can be resumed.", c.Breaks)
	counter(m, "lane_failovers_total", "Connections that were resumed over another queue pair.", c.Failovers)
	counter(m, "lane_dropped_total", "Messages that broke the protocol.", c.Dropped)
	gauge(m, "lane_chunks_open", "Chunks that wait for gradients of some workers.", c.FoldsOpen)
	gauge(m, "lane_slots_held", "Messages not answered yet.", c.SlotsHeld)
	count, buckets := latencyBuckets(&c)
	latency := m.desc("lane_chunk_latency_seconds", "From a chunk's first gradient to its answer.")
	m.out <- prometheus.MustNewConstHistogram(latency, count, seconds(c.LatencySumNS), buckets, m.values...)
}

// latencyBuckets turns a lane's histogram into cumulative counts by upper bound in seconds. Bucket i of the histogram counts
// latencies below 2^i µs, and the last one counts all others.
func latencyBuckets(c *aggregate.Counters) (count uint64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, lane.LatencyBuckets)
	for i, n := range c.Latency {
		count += n
		if i < lane.LatencyBuckets-1 {
			buckets[float64(uint64(1)<<i)/1e6] = count
		}
	}
	return count, buckets
}

func collectJob(j *job.Job, out chan<- prometheus.Metric) {
	release, err := j.Hold()
	if err != nil {
		return
	}
	defer release()
	m := labelled{out, []string{"job"}, []string{j.Name}}
	members, tensors, bytes := j.Size()
	memory := j.Agg.Memory()
	gauge(m, "job_workers", "Workers of the job.", members)
	gauge(m, "job_tensors", "Tensors registered.", tensors)
	gauge(m, "job_model_bytes", "Bytes of parameters in f32.", bytes)
	gauge(m, "job_parameter_bytes", "Memory for parameters and optimizer state.", memory.Parameters)
	gauge(m, "job_slot_bytes", "Memory that gradients arrive in.", memory.Slots)
	gauge(m, "job_result_bytes", "Memory that answers leave from.", memory.Results)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if d, ok, err := j.Agg.Drift(ctx); ok && err == nil {
		gauge(m, "job_drift", "Distance of racks that meet, or workers of mode stream, from the common parameters, of their length.", d.Share)
		if d.Most > 0 {
			gauge(m, "job_drift_threshold", "Drift above which racks meet twice as often.", j.Spec.Outer.Drift)
			gauge(m, "job_interval_steps", "Steps from a meeting of the racks to the next, the mean of all chunks.", d.Mean)
		}
	}
	if rows, err := j.Agg.Rows(ctx); err == nil && len(rows) > 0 {
		collectRows(m, rows, members)
	}
	for rank, c := range j.Agg.WorkerCounters() {
		m := labelled{out, []string{"job", "rank", "host"}, []string{j.Name, strconv.Itoa(rank), j.Members[rank].Host}}
		counter(m, "worker_received_bytes_total", "Bytes from the worker.", c.RecvBytes)
		counter(m, "worker_sent_bytes_total", "Bytes to the worker.", c.SentBytes)
		counter(m, "worker_chunks_total", "Gradients of chunks from the worker.", c.Chunks)
		counter(m, "worker_last_arrivals_total", "Chunks for which the worker's gradient was the last.", c.LastArrivals)
		counter(m, "worker_lateness_seconds_total", "Time by which the worker's gradients came after their chunks' first, summed.",
			seconds(c.LatenessNS))
		if j.Spec.Compress.String() != "none" {
			collectCoding(m, "gradient", &c.Up)
			collectCoding(m, "answer", &c.Down)
		}
		if g := j.Agg.Gate; g != nil {
			p := g.Look(rank)
			counter(m, "worker_steps_total", "Steps that the worker has ended.", p.Step)
			counter(m, "worker_held_seconds_total", "Time for which the policy held the worker, but for a wait under way.", seconds(p.HeldNS))
			gauge(m, "worker_held", "Whether the policy holds the worker: 1 or 0.", oneIf(p.Waits))
			counter(m, "worker_staleness_total", "Updates that others made while the worker computed its gradients, summed.", p.TauSum)
			counter(m, "worker_dropped_steps_total", "Steps whose gradients the policy dropped.", p.Dropped)
		}
	}
}

// collectRows is for a job with sparse tensors.
func collectRows(m labelled, rows []*aggregate.RowStatus, workers int) {
	var listed, merged, bytes, dense, all uint64
	for _, r := range rows {
		listed, merged, bytes = listed+r.Listed, merged+r.Merged, bytes+r.Bytes
		dense, all = dense+r.DenseBytes(workers), all+r.Steps*r.Rows
	}
	counter(m, "job_sparse_listed_rows_total", "Rows of sparse tensors that the workers have sent.", listed)
	counter(m, "job_sparse_merged_rows_total", "Rows that some worker has sent, counted once a step.", merged)
	counter(m, "job_sparse_rows_total", "Rows of the sparse tensors, counted in each of their steps.", all)
	counter(m, "job_sparse_bytes_total", "Bytes of the messages with these rows.", bytes)
	counter(m, "job_sparse_dense_bytes_total", "Bytes that dense gradients would have had.", dense)
}

// collectCoding is for a job with codecs.
func collectCoding(m labelled, of string, n *aggregate.Coding) {
	name := "worker_" + of
	counter(m, name+"_payload_bytes_total", "Bytes of the worker's "+of+"s with data, as they travel.", n.Sent)
	counter(m, name+"_value_bytes_total", "Bytes that they would have without a codec.", n.Raw)
	counter(m, name+"_payloads_total", "The worker's "+of+"s of chunks with data.", n.Chunks)
	counter(m, name+"_raw_payloads_total", "Payloads of these that travel as they are.", n.Whole)
	counter(m, name+"_energy_total", "Sum of squares of what was compressed.", n.Energy)
	counter(m, name+"_lost_total", "Sum of squares of what compression lost.", n.Lost)
}
