package simrack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// cluster is a schedule's rack. The aggregator's NICs are the first hosts, followed by a host for every worker of every job.
type cluster struct {
	schedule *Schedule
	sim      *simfabric.World
	hosts    []*verbs.Device
	engine   *aggregate.Engine
	jobs     []*job
	clock    *numa.Arena // holds virtual time, in ns, for the C workers
	now      int64       // virtual time, in ns
	log      func(format string, args ...any)

	aggregatorDown []int // the aggregator's NICs without a link, according to the control plane
}

// job is a running job of a schedule.
type job struct {
	*JobSchedule
	index   int
	rack    *racktest.Rack
	members []*member
	oracle  *oracle
	stream  *streamOracle       // mode stream; else nil
	memory  aggregate.MemoryUse // what it held after the last registration
	batches int                 // that were registered
	ops     int                 // operations that completed, over all members

	struck   bool          // a fatal fault may have hit it
	doubtful bool          // a worker may have sent false gradients, so results prove nothing
	failed   time.Duration // time at which its failure was first noticed, or 0
	changed  bool          // its policy was changed
	skipped  bool          // the aggregator ended before it could start
	closed   bool
}

func newCluster(s *Schedule, log func(format string, args ...any)) (*cluster, error) {
	c := &cluster{schedule: s, log: log}
	var err error
	if c.sim, err = simfabric.New(s.Seed); err != nil {
		return c, err
	}
	c.sim.SetNetwork(s.Network)
	if c.clock, err = numa.NewArena(numa.ArenaConfig{Name: "clock", Bytes: 8, Node: numa.AnyNode}); err != nil {
		return c, err
	}
	for i := range s.NICs {
		if err := c.addHost(fmt.Sprintf("aggregator%d", i)); err != nil {
			return c, err
		}
	}
	lanes := make([]aggregate.LaneConfig, s.Lanes)
	for i := range lanes {
		lanes[i] = aggregate.LaneConfig{Device: c.hosts[i%s.NICs], NIC: i % s.NICs, CPU: -1, Node: numa.AnyNode}
	}
	workers := 0
	for _, js := range s.Jobs {
		workers += len(js.Workers)
	}
	c.engine, err = aggregate.Start(aggregate.Config{
		Lanes: lanes, Window: s.Window, MaxConns: workers, Manual: true, Now: func() int64 { return c.now },
	})
	if err != nil {
		return c, err
	}
	for i, js := range s.Jobs {
		j := &job{JobSchedule: js, index: i, oracle: newOracle(js, s.Seed<<8+uint64(i))}
		if js.Mode == aggregate.Stream {
			j.stream = newStreamOracle(j)
		}
		c.jobs = append(c.jobs, j)
		for rank := range js.Workers {
			j.members = append(j.members, newMember(c, j, rank, len(c.hosts)))
			if err := c.addHost(fmt.Sprintf("%s-worker%d", js.Name, rank)); err != nil {
				return c, err
			}
		}
	}
	return c, c.addNICs()
}

// addNICs adds the members' NICs after the first.
func (c *cluster) addNICs() error {
	for _, j := range c.jobs {
		for _, m := range j.members {
			m.nics = []int{m.host}
			for i := 1; c.schedule.Failovers != nil && i < c.schedule.Failovers.WorkerNICs; i++ {
				m.nics = append(m.nics, len(c.hosts))
				if err := c.addHost(fmt.Sprintf("%s-worker%d.%d", j.Name, m.rank, i)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *cluster) addHost(name string) error {
	options := c.sim.Options()
	if c.schedule.ByReference {
		options += ",by_reference=1"
	}
	if c.schedule.CopiesAtPost {
		options += ",copies_at_post=1,maps=1" // as provider shm
	}
	if c.schedule.Failovers != nil {
		options += ",link=1"
	}
	d, err := verbs.Open(simfabric.Provider, name, options)
	if err == nil {
		c.hosts = append(c.hosts, d)
	}
	return err
}

func (c *cluster) clockNS() *uint64 { return (*uint64)(unsafe.Pointer(c.clock.Addr())) }

// tick sets the cluster's time to the network's.
func (c *cluster) tick() {
	c.now = int64(c.sim.Now())
	atomic.StoreUint64(c.clockNS(), uint64(c.now))
}

// start opens a job's rack.
func (c *cluster) start(j *job) error {
	s := c.schedule
	cfg := racktest.Config{
		Engine: c.engine, NICs: c.hosts[:s.NICs], Lanes: s.Lanes, Window: s.Window, Staging: s.Staging, ClockNS: c.clockNS(),
		Job: aggregate.JobConfig{Name: j.Name, Mode: j.Mode, Rule: j.Rule, Hyper: j.Hyper, ChunkBytes: chunkBytes, Policy: j.Policy.Spec,
			Compress: j.Codecs},
		Now: func() int64 { return c.now }, Log: func(format string, args ...any) {
			c.log("%v: %s "+format, slices.Insert(args, 0, any(time.Duration(c.now)), any(j.Name))...)
		},
		Memory: j.Type, Arena: j.Memory == arena, Copy: j.Memory == copied, Tensors: j.tensors(0),
		Standard: j.Standard,
	}
	for _, m := range j.members {
		var nics []*verbs.Device
		for _, nic := range m.nics {
			nics = append(nics, c.hosts[nic])
		}
		cfg.Workers = append(cfg.Workers, nics)
	}
	if s.Failovers != nil {
		cfg.AckTimeout = s.Failovers.AckTimeout
	}
	if j.Sets {
		cfg.Job.Decided = j.stream.decide
	}
	rack, err := racktest.Open(cfg)
	if err != nil {
		return err // opened resources were closed
	}
	j.rack, j.oracle.plan = rack, rack.Plan
	if j.stream != nil {
		if _, _, err := rack.Job.Trace(context.Background(), traceEvents); err != nil {
			return err
		}
	}
	j.batches, j.memory = 1, j.rack.Job.Memory()
	for i, m := range j.members {
		m.w = j.rack.Workers[i]
		m.due = make([]int64, s.Lanes)
		m.w.AggregatorLinks(c.aggregatorDown)
	}
	c.tick()
	return nil
}

// tensors returns the tensors of a batch.
func (j *JobSchedule) tensors(batch int) (out []chunk.Tensor) {
	for i, n := range j.Batches[batch] {
		t := chunk.Tensor{Name: fmt.Sprintf("t%d.%d", batch, i), Elems: n, DType: j.Wire}
		if j.Widths != nil {
			t.Width = j.Widths[batch][i]
		}
		out = append(out, t)
	}
	return out
}

// register adds the job's next batch of tensors. All members have asked for it.
func (j *job) register() error {
	err := j.rack.Add(j.tensors(j.batches))
	j.batches++
	j.memory = j.rack.Job.Memory()
	return err
}

func (j *job) close() error {
	if j.closed || j.rack == nil {
		return nil
	}
	j.closed = true
	return j.rack.Close()
}

// close closes everything. A resource that cannot be closed was leaked.
func (c *cluster) close() error {
	var errs []error
	for _, j := range c.jobs {
		errs = append(errs, j.close())
	}
	if c.engine != nil {
		errs = append(errs, c.engine.Close())
	}
	for _, d := range c.hosts {
		errs = append(errs, d.Close())
	}
	if c.clock != nil {
		errs = append(errs, c.clock.Close())
	}
	if c.sim != nil {
		c.sim.Close()
	}
	return errors.Join(errs...)
}
