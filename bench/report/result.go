package report

import "fmt"

// SoftwareNote goes with every number that was not taken on RDMA hardware.
const SoftwareNote = "software transport: shows correctness and CPU cost, not line rate"

// Result is one benchmark: a model exchanged Iterations times by Workers workers.
type Result struct {
	Machine  Machine `json:"machine"`
	Provider string  `json:"provider"`
	// Server is the aggregator's address, empty if it was embedded in the benchmark.
	Server  string `json:"server,omitempty"`
	Workers int    `json:"workers"`
	Model   string `json:"model"`
	// Bytes is the size of the model on the wire: what one worker sends, and receives, per iteration without codecs.
	Bytes      uint64 `json:"bytes"`
	DType      string `json:"dtype"`
	Optimizer  string `json:"optimizer"`
	ChunkBytes uint32 `json:"chunk_bytes"`
	// Codecs is nil without codecs.
	Codecs *Codecs `json:"codecs,omitempty"`
	// Rows is nil where whole tensors were exchanged.
	Rows *Rows `json:"rows,omitempty"`
	// Lanes is the number of cores that aggregate.
	Lanes int `json:"lanes"`
	// Memory holds gradients and results: "arenas" of the transport, or "ordinary memory".
	Memory     string `json:"memory"`
	Iterations int    `json:"iterations"`
	Warmup     int    `json:"warmup"`

	// TimeUS is of whole exchanges, the slowest worker's time in each.
	TimeUS TimeUS `json:"time_us"`
	// P99OverMean is the time of the worst exchanges over the mean.
	P99OverMean float64 `json:"p99_over_mean"`
	AlgBW       float64 `json:"algbw_gbs"`
	BusBW       float64 `json:"busbw_gbs"`
	// Goodput is, by rank, what each worker sent and received per second of its own mean time.
	Goodput []float64 `json:"goodput_gbs"`

	Roofline Roofline `json:"roofline"`
	// Replay is the breakdown of the time, where computation was replayed.
	Replay *Replay `json:"replay,omitempty"`
	Verdict
	Note string `json:"note,omitempty"`
}

// Verdict is the comparison of the workers' results with plain Go's.
type Verdict struct {
	// Wrong counts the elements of tensors that differ from the reference, of all workers; with Verified false nothing was compared.
	Wrong    uint64 `json:"wrong"`
	Verified bool   `json:"verified"`
	// Checksum is of the final parameters, in hex.
	Checksum string `json:"checksum"`
	// Reference is the checksum of what plain Go computed, where Verified.
	Reference string `json:"reference_checksum,omitempty"`
}

// Roofline is the most that the machine can do of what an exchange needs, measured in the same run.
type Roofline struct {
	Name string `json:"name"`
	// GBs counts bytes as [Result.Moved] does.
	GBs float64 `json:"gbs"`
	// Share is the exchange's part of it, 1 being all.
	Share float64 `json:"share"`
}

// AlgBW is the algorithm bandwidth in GB/s, as nccl-tests defines it: the size of the data over the time.
func AlgBW(bytes uint64, us float64) float64 {
	if us <= 0 {
		return 0
	}
	return float64(bytes) / us / 1e3
}

// BusBW is the bus bandwidth in GB/s of an all-reduce, as nccl-tests defines it: algbw x 2(n-1)/n, the rate that the
// busiest link of a ring carries in each direction. With one worker it is 0.
//
// An aggregator is not a ring: each worker's link carries the data once out and once in, so that algbw itself cannot exceed the
// link's rate, and busbw can: up to 1.75 times the rate for 8 workers. It is printed for comparison with
// all-reduce libraries; algbw over the link's rate is the use of the link.
func BusBW(algbw float64, workers int) float64 {
	return algbw * 2 * float64(workers-1) / float64(workers)
}

// SetTimes fills in times and bandwidths from the exchanges' times (of which the mean counts, as in nccl-tests) and each
// worker's own mean time in microseconds, by rank. Workers and Bytes must be set.
func (r *Result) SetTimes(exchanges TimeUS, workerMeanUS []float64) {
	if r.Workers < 1 || len(workerMeanUS) != r.Workers {
		panic(fmt.Sprintf("report: times of %d workers in a result of %d", len(workerMeanUS), r.Workers))
	}
	r.TimeUS = exchanges
	if exchanges.Mean > 0 {
		r.P99OverMean = exchanges.P99 / exchanges.Mean
	}
	r.AlgBW = AlgBW(r.Bytes, exchanges.Mean)
	r.BusBW = BusBW(r.AlgBW, r.Workers)
	r.Goodput = make([]float64, r.Workers)
	for rank, us := range workerMeanUS {
		r.Goodput[rank] = AlgBW(2*r.Bytes, us)
	}
}

// Moved is the bytes an exchange cannot avoid moving: every worker's gradient once in, every worker's result once out.
func (r *Result) Moved() uint64 {
	both := 2 * r.Bytes
	if r.Codecs != nil {
		both = r.Codecs.Gradients.Bytes + r.Codecs.Answers.Bytes
	}
	return uint64(r.Workers) * both
}

// SetRoofline fills in the roofline and the exchange's share of it; times must be set.
func (r *Result) SetRoofline(roof Roofline) {
	r.Roofline = roof
	if roof.GBs > 0 {
		r.Roofline.Share = AlgBW(r.Moved(), r.TimeUS.Mean) / roof.GBs
	}
}

// NoteFor returns the caveat for numbers of a provider: [SoftwareNote] for all but RDMA hardware's. A caller that knows its RDMA
// device to be emulated uses SoftwareNote itself.
func NoteFor(provider string) string {
	if provider == "ibv" {
		return ""
	}
	return SoftwareNote
}
