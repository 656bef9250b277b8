package service

import (
	"bytes"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/racks"
)

// family is a metric of one kind of labelled thing. Its value comes from the thing's counters.
type family[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*T) float64
}

func counter[T any](name, help string, labels []string, value func(*T) float64) family[T] {
	return family[T]{prometheus.NewDesc("rackweave_"+name, help, labels, nil), prometheus.CounterValue, value}
}

func gauge[T any](name, help string, labels []string, value func(*T) float64) family[T] {
	return family[T]{prometheus.NewDesc("rackweave_"+name, help, labels, nil), prometheus.GaugeValue, value}
}

func emit[T any](out chan<- prometheus.Metric, families []family[T], of *T, labels ...string) {
	for _, f := range families {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(of), labels...)
	}
}

func describe[T any](out chan<- *prometheus.Desc, families []family[T]) {
	for _, f := range families {
		out <- f.desc
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }

var (
	laneLabels   = []string{"provider", "lane", "device", "cpu"}
	jobLabels    = []string{"job"}
	workerLabels = []string{"job", "rank", "host"}

	laneFamilies = []family[aggregate.Counters]{
		counter("lane_received_bytes_total", "Bytes of messages from workers.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.RecvBytes) }),
		counter("lane_sent_bytes_total", "Bytes of answers to workers.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.SentBytes) }),
		counter("lane_racks_received_bytes_total", "Bytes of sums and results from the aggregators of other racks.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.AboveRecvBytes) }),
		counter("lane_racks_sent_bytes_total", "Bytes of sums and results to the aggregators of other racks.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.AboveSentBytes) }),
		counter("lane_messages_total", "Messages from workers.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Messages) }),
		counter("lane_answers_total", "Answers to workers.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Answers) }),
		counter("lane_chunks_total", "Chunks aggregated.", laneLabels, func(c *aggregate.Counters) float64 { return float64(c.Chunks) }),
		counter("lane_doorbells_total", "Posts to send queues.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Doorbells) }),
		counter("lane_rounds_total", "Rounds of the loop that found work.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Rounds) }),
		counter("lane_sleeps_total", "Times the loop slept.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Sleeps) }),
		counter("lane_sampled_fold_seconds_total", "Time in sums and optimizer of the sampled chunks.", laneLabels,
			func(c *aggregate.Counters) float64 { return seconds(c.FoldNS) }),
		counter("lane_sampled_post_seconds_total", "Time in posting the answers of the sampled chunks.", laneLabels,
			func(c *aggregate.Counters) float64 { return seconds(c.PostNS) }),
		counter("lane_sampled_chunks_total", "Chunks whose times were taken.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Samples) }),
		counter("lane_deferred_total", "Answers that had to wait for queue or buffer space.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Deferred) }),
		counter("lane_give_backs_total", "Chunks given back to relieve workers that push in different orders.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.NACKs) }),
		counter("lane_wants_total", "Chunks asked of workers that others had pushed before them.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Requests) }),
		counter("lane_moves_total", "Chunks that went to another lane.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Moves) }),
		counter("lane_breaks_total", "Connections whose queue pair failed and that can be resumed.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Breaks) }),
		counter("lane_failovers_total", "Connections that were resumed over another queue pair.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Failovers) }),
		counter("lane_dropped_total", "Messages that broke the protocol.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.Dropped) }),
		gauge("lane_chunks_open", "Chunks that wait for gradients of some workers.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.FoldsOpen) }),
		gauge("lane_slots_held", "Messages not answered yet.", laneLabels,
			func(c *aggregate.Counters) float64 { return float64(c.SlotsHeld) }),
	}
	refusedCalls = prometheus.NewDesc("rackweave_refused_total", "Connections and calls that were turned away, by reason.",
		[]string{"reason"}, nil)
	laneLatency = prometheus.NewDesc("rackweave_lane_chunk_latency_seconds", "From a chunk's first gradient to its answer.",
		laneLabels, nil)

	nicFamilies = []family[bool]{
		gauge("nic_up", "Whether the NIC's link is up: 1 or 0.", []string{"provider", "device"}, func(up *bool) float64 {
			return number(*up)
		}),
	}

	jobFamilies = []family[jobMetrics]{
		gauge("job_workers", "Workers of the job.", jobLabels, func(m *jobMetrics) float64 { return float64(m.workers) }),
		gauge("job_tensors", "Tensors registered.", jobLabels, func(m *jobMetrics) float64 { return float64(m.tensors) }),
		gauge("job_model_bytes", "Bytes of parameters in f32.", jobLabels, func(m *jobMetrics) float64 { return float64(m.modelBytes) }),
		gauge("job_parameter_bytes", "Memory for parameters and optimizer state.", jobLabels,
			func(m *jobMetrics) float64 { return float64(m.memory.Parameters) }),
		gauge("job_slot_bytes", "Memory that gradients arrive in.", jobLabels,
			func(m *jobMetrics) float64 { return float64(m.memory.Slots) }),
		gauge("job_result_bytes", "Memory that answers leave from.", jobLabels,
			func(m *jobMetrics) float64 { return float64(m.memory.Results) }),
		counter("job_shape_changes_total", "Times that the job's racks took another shape while it ran.", jobLabels,
			func(m *jobMetrics) float64 { return float64(m.changes) }),
		counter("job_link_measurements_total", "Times that the links between racks were measured because steps took another time.",
			jobLabels, func(m *jobMetrics) float64 { return float64(m.measurements) }),
	}

	workerFamilies = []family[aggregate.WorkerCounters]{
		counter("worker_received_bytes_total", "Bytes from the worker.", workerLabels,
			func(c *aggregate.WorkerCounters) float64 { return float64(c.RecvBytes) }),
		counter("worker_sent_bytes_total", "Bytes to the worker.", workerLabels,
			func(c *aggregate.WorkerCounters) float64 { return float64(c.SentBytes) }),
		counter("worker_chunks_total", "Gradients of chunks from the worker.", workerLabels,
			func(c *aggregate.WorkerCounters) float64 { return float64(c.Chunks) }),
		counter("worker_last_arrivals_total", "Chunks for which the worker's gradient was the last.", workerLabels,
			func(c *aggregate.WorkerCounters) float64 { return float64(c.LastArrivals) }),
		counter("worker_lateness_seconds_total", "Time by which the worker's gradients came after their chunks' first, summed.",
			workerLabels, func(c *aggregate.WorkerCounters) float64 { return seconds(c.LatenessNS) }),
	}

	meetingFamilies = []family[uint64]{
		counter("job_meetings_total", "Meetings that the job's racks have held, by fragment, where racks may miss some.", jobLabels,
			func(n *uint64) float64 { return float64(*n) }),
	}
	missedFamilies = []family[uint64]{
		counter("rack_missed_meetings_total", "Meetings that were held without the rack.", []string{"job", "rack"},
			func(n *uint64) float64 { return float64(*n) }),
	}

	paceFamilies = []family[aggregate.Pace]{
		counter("worker_steps_total", "Steps that the worker has ended.", workerLabels,
			func(p *aggregate.Pace) float64 { return float64(p.Step) }),
		counter("worker_held_seconds_total", "Time for which the policy held the worker, but for a wait under way.", workerLabels,
			func(p *aggregate.Pace) float64 { return float64(p.HeldNS) / 1e9 }),
		gauge("worker_held", "Whether the policy holds the worker: 1 or 0.", workerLabels,
			func(p *aggregate.Pace) float64 { return number(p.Waits) }),
		counter("worker_staleness_total", "Updates that others made while the worker computed its gradients, summed.", workerLabels,
			func(p *aggregate.Pace) float64 { return float64(p.TauSum) }),
		counter("worker_dropped_steps_total", "Steps whose gradients the policy dropped.", workerLabels,
			func(p *aggregate.Pace) float64 { return float64(p.Dropped) }),
	}

	serviceFamilies = []family[Service]{
		counter("jobs_started_total", "Jobs that ran.", nil, func(s *Service) float64 { return float64(s.jobsStarted.Load()) }),
		counter("jobs_failed_total", "Jobs that failed.", nil, func(s *Service) float64 { return float64(s.jobsFailed.Load()) }),
		gauge("stranger_connections", "Connections of peers who have shown no session.", nil,
			func(s *Service) float64 { return float64(s.door.Strangers()) }),
		gauge("uptime_seconds", "Time since the aggregator started.", nil, func(s *Service) float64 { return s.uptime().Seconds() }),
	}
)

// membershipFamilies are of an aggregator whose cluster's membership etcd keeps.
var membershipFamilies = []family[racks.Standing]{
	gauge("cluster_plan_epoch", "Revision at which etcd's plan of the cluster was decided.", nil,
		func(s *racks.Standing) float64 { return float64(s.Plan.Epoch) }),
	gauge("cluster_etcd_up", "Whether etcd answers: 1 or 0.", nil,
		func(s *racks.Standing) float64 { return number(s.Store.Reachable) }),
	gauge("cluster_lease_age_seconds", "Time since the aggregator's lease was renewed; -1: never.", nil,
		func(s *racks.Standing) float64 { return s.Store.Seconds }),
	gauge("cluster_jobs_may_begin", "Whether jobs may begin here: 1 or 0. Those that run go on.", nil,
		func(s *racks.Standing) float64 { return number(s.Refusal == nil) }),
	gauge("cluster_racks_served", "Racks of the plan that have an aggregator.", nil,
		func(s *racks.Standing) float64 { return float64(s.Plan.Served()) }),
}

// jobMetrics is the source of a job's metrics.
type jobMetrics struct {
	workers, tensors int
	modelBytes       int64
	changes          uint32
	measurements     uint64
	memory           aggregate.MemoryUse
}

// Collector gives the service's metrics to a registry. A scrape reads what the lanes have published and costs them nothing.
func (s *Service) Collector() prometheus.Collector { return collector{s} }

// pageEvery is how often the metrics are rendered at most. Whoever asks sooner gets the same page.
const pageEvery = 250 * time.Millisecond

// metricsPage serves the metrics of the service, the process and the Go runtime. A page is rendered before it is sent, so that a
// reader who takes none of it holds nothing up.
func (s *Service) metricsPage() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(s.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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

type collector struct{ s *Service }

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	describe(out, laneFamilies)
	describe(out, nicFamilies)
	out <- laneLatency
	describe(out, jobFamilies)
	describe(out, workerFamilies)
	describe(out, paceFamilies)
	describe(out, meetingFamilies)
	describe(out, missedFamilies)
	describe(out, serviceFamilies)
	describe(out, membershipFamilies)
	out <- refusedCalls
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	emit(out, serviceFamilies, c.s)
	if k := c.s.cluster; k != nil && k.Members != nil {
		standing := k.Members.Standing()
		emit(out, membershipFamilies, &standing)
	}
	for reason, n := range c.s.refusals.all() {
		out <- prometheus.MustNewConstMetric(refusedCalls, prometheus.CounterValue, float64(n), reason)
	}
	for _, p := range c.s.served {
		c.s.engines[p].collect(out)
	}
	for _, j := range c.s.running() {
		j.collect(out)
	}
}

func (e *engine) collect(out chan<- prometheus.Metric) {
	for nic, d := range e.devices {
		up := e.links.isUp(nic)
		emit(out, nicFamilies, &up, e.provider, d.Attr().Name)
	}
	for i, l := range e.agg.Lanes() {
		c := l.Counters()
		labels := []string{e.provider, strconv.Itoa(i), e.names[i], strconv.Itoa(l.Config().CPU)}
		emit(out, laneFamilies, &c, labels...)
		count, buckets := latencyBuckets(&c)
		out <- prometheus.MustNewConstHistogram(laneLatency, count, seconds(c.LatencySumNS), buckets, labels...)
	}
}

// latencyBuckets turns a lane's histogram into cumulative counts by upper bound in seconds. Bucket i of the histogram counts
// latencies below 2^i µs, and the last one counts all others.
func latencyBuckets(c *aggregate.Counters) (count uint64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, aggregate.LatencyBuckets)
	for i, n := range c.Latency {
		count += n
		if i < aggregate.LatencyBuckets-1 {
			buckets[float64(uint64(1)<<i)/1e6] = count
		}
	}
	return count, buckets
}

func (j *job) collect(out chan<- prometheus.Metric) {
	release, err := j.hold()
	if err != nil {
		return
	}
	defer release()
	j.mu.Lock()
	m := jobMetrics{workers: len(j.members), tensors: j.tensors, modelBytes: j.modelBytes, changes: j.shapeChanges,
		measurements: j.linkMeasurements.Load()}
	j.mu.Unlock()
	m.memory = j.agg.Memory()
	emit(out, jobFamilies, &m, j.name)
	if j.meetings != nil {
		held, missed := j.meetings.counts()
		emit(out, meetingFamilies, &held, j.name)
		for rack, n := range missed {
			emit(out, missedFamilies, &n, j.name, j.spec.racks.Racks[rack].Name)
		}
	}
	for rank, c := range j.agg.WorkerCounters() {
		emit(out, workerFamilies, &c, j.name, strconv.Itoa(rank), j.members[rank].host)
		if p, ok := j.agg.Pace(rank); ok {
			emit(out, paceFamilies, &p, j.name, strconv.Itoa(rank), j.members[rank].host)
		}
	}
}
