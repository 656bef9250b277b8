package aggregate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// paced drives racks that go at paces of their own.
type paced struct {
	t       *testing.T
	c       *racktest.Cluster
	seed    uint64
	steps   int
	pause   func(rack, step int) int // rounds that a rack's workers take for a step
	racks   []pacedRack
	network func()
	words   [][]hierarchy.Word // by rack, as it heard them
}

// pacedRack is how far a rack is.
type pacedRack struct {
	step    int
	wait    int
	handles [][]uint64      // of the step; nil: its workers compute
	out     [][][][]float32 // by step, worker and tensor, what pushpulls answered
}

// gradients are those of a rack's step, by worker and tensor.
func (p *paced) gradients(rack, step int) [][][]float32 {
	rng := rand.New(rand.NewPCG(p.seed, uint64(rack)<<32|uint64(step)))
	plan := p.c.Racks[0].Plan
	out := make([][][]float32, len(p.c.Racks[rack].Workers))
	for w := range out {
		for k := range plan.NumTensors() {
			g := make([]float32, plan.Tensor(k).Elems)
			fill(rng, g)
			out[w] = append(out[w], g)
		}
	}
	return out
}

// submit starts a rack's next step.
func (p *paced) submit(rack int) {
	p.t.Helper()
	r, c := &p.racks[rack], p.c.Racks[rack]
	ops := p.c.AllOps(chunk.OpPushPull)[rack]
	for i, grads := range p.gradients(rack, r.step) {
		for k, g := range grads {
			copy(c.Workers[i].SrcF32(k), g)
		}
		h, err := c.Workers[i].Submit(ops[i]...)
		if err != nil {
			p.t.Fatal(err)
		}
		r.handles = append(r.handles, h)
	}
}

// finish takes note of what a rack's step has answered.
func (p *paced) finish(rack int) {
	r, c := &p.racks[rack], p.c.Racks[rack]
	var out [][][]float32
	for _, w := range c.Workers {
		var of [][]float32
		for k := range c.Plan.NumTensors() {
			of = append(of, slices.Clone(w.DstF32(k)[:c.Plan.Tensor(k).Elems]))
		}
		out = append(out, of)
	}
	r.out, r.handles = append(r.out, out), nil
	if r.step++; r.step == p.steps {
		c.Job.Away(true)
		return
	}
	r.wait = p.pause(rack, r.step)
}

// broadcast gives all racks initial values.
func (p *paced) broadcast() error {
	p.t.Helper()
	for k, x := range p.initial() {
		copy(p.c.Racks[0].Workers[0].SrcF32(k), x)
	}
	handles, err := p.c.Submit(p.c.AllOps(chunk.OpBroadcast))
	if err != nil {
		return err
	}
	return p.c.Drive(p.network, handles, 100000)
}

func (p *paced) initial() (w [][]float32) {
	rng := rand.New(rand.NewPCG(p.seed, 3))
	for k := range p.c.Racks[0].Plan.NumTensors() {
		x := make([]float32, p.c.Racks[0].Plan.Tensor(k).Elems)
		fill(rng, x)
		w = append(w, racktest.OnWire(p.c.Racks[0].Plan.Tensor(k).DType, x))
	}
	return w
}

// run takes all steps of all racks.
func (p *paced) run() error {
	p.t.Helper()
	p.racks = make([]pacedRack, len(p.c.Racks))
	for rack := range p.racks {
		p.racks[rack].wait = p.pause(rack, 0)
	}
	for round := range 3_000_000 {
		p.network()
		all := true
		for rack, c := range p.c.Racks {
			r := &p.racks[rack]
			done, err := c.Step(append(r.handles, make([][]uint64, len(c.Workers)-len(r.handles))...), false)
			if err != nil {
				return fmt.Errorf("rack %d: %w", rack, err)
			}
			if round%16 == 15 {
				for _, l := range c.Engine.Lanes() {
					l.Tick()
				}
			}
			switch {
			case r.step == p.steps:
				continue
			case r.handles == nil && r.wait > 0:
				r.wait--
			case r.handles == nil:
				p.submit(rack)
			case done:
				p.finish(rack)
			}
			all = false
		}
		if all {
			return nil
		}
	}
	var at []int
	for rack := range p.racks {
		at = append(at, p.racks[rack].step)
	}
	return fmt.Errorf("not done after many rounds: racks are at steps %v of %d, words %v", at, p.steps, p.words)
}

// failures are why the racks' jobs have failed.
func (p *paced) failures() string {
	var why []string
	for _, rack := range p.c.Racks {
		if f := rack.Job.Failure(); f != nil {
			why = append(why, f.Err.Error())
		}
	}
	return strings.Join(why, "\n")
}

// check compares what every worker got with the replay of the words.
func (p *paced) check(begin func() *racktest.Outer) error {
	log := p.words[0]
	for rack, words := range p.words {
		if !slices.Equal(words, log[:min(len(words), len(log))]) {
			return fmt.Errorf("rack %d heard %v, rack 0 said %v", rack, words, log)
		}
	}
	want := racktest.Replay(log, p.steps, begin, p.gradients)
	for rack := range p.racks {
		for n, step := range p.racks[rack].out {
			for w := range step {
				for k := range step[w] {
					if i, same := racktest.SameBits(step[w][k], want[rack][n][k]); !same {
						return fmt.Errorf("step %d: rack %d worker %d tensor %d element %d is %v, plain Go says %v; words %v", n, rack, w, k, i,
							step[w][k][i], want[rack][n][k][i], log)
					}
				}
			}
		}
	}
	return nil
}

// quorumRun is a run of racks that may miss meetings.
type quorumRun struct {
	seed     uint64
	topology hierarchy.Topology
	workers  []int
	outer    hierarchy.Outer
	rule     optim.Rule
	wire     chunk.DType
	lanes    int
	window   int
	periods  int
	pause    func(rack, step int) int
}

// open makes the racks.
func (q *quorumRun) open(t *testing.T) *paced {
	t.Helper()
	p := &paced{t: t, seed: q.seed, steps: q.periods*q.outer.Every + 1, pause: q.pause,
		words: make([][]hierarchy.Word, len(q.workers))}
	p.c, p.network = simCluster(t, q.seed, q.topology, q.workers, racktest.Config{
		Lanes: q.lanes, Window: q.window, Shuffle: q.seed + 1,
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: q.rule, Hyper: q.rule.Defaults(), ChunkBytes: 4096,
			Outer: q.outer},
		Tensors: tensorsOf(q.wire, 1, 5000, 1023, 9000, 3, 4000),
	}, func(rack int, cfg *racktest.Config) {
		cfg.Job.Met = func(w hierarchy.Word, _ uint32, _ []int) { p.words[rack] = append(p.words[rack], w) }
	})
	return p
}

// try runs the racks and compares them with plain Go.
func (q *quorumRun) try(t *testing.T) *paced {
	t.Helper()
	p := q.open(t)
	begin := func() *racktest.Outer {
		ref := racktest.NewReference(aggregate.Eager, q.rule, q.rule.Defaults(), q.wire, p.initial())
		plan := p.c.Racks[0].Plan
		return racktest.NewOuter(q.outer, ref, q.workers, q.topology.Pods, func(tensor, elem int) int {
			first, _ := plan.TensorChunks(tensor)
			return first + elem/(4096/q.wire.Size())
		})
	}
	err := p.broadcast()
	if err == nil {
		err = p.run()
	}
	if err == nil {
		err = p.check(begin)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// anyQuorum draws racks, a quorum, and paces at which some racks miss meetings.
func anyQuorum(seed uint64) *quorumRun {
	rng := rand.New(rand.NewPCG(seed, 21))
	q := &quorumRun{seed: seed, workers: make([]int, 2+rng.IntN(4)), lanes: 1 + rng.IntN(2), window: 2 + rng.IntN(6), periods: 5}
	for i := range q.workers {
		q.workers[i] = 1 + rng.IntN(2)
	}
	q.topology = hierarchy.Topology{Racks: len(q.workers), Pods: 1}
	if len(q.workers) == 4 {
		q.topology.Pods = 1 + rng.IntN(2)
	}
	q.topology.Shape = anyShape(rng, q.topology)
	q.outer = hierarchy.Outer{Every: 1 + rng.IntN(4), Rule: hierarchy.OuterSGD, LR: 0.5 + rng.Float64(),
		Grace: []time.Duration{0, 20 * time.Microsecond, time.Millisecond}[rng.IntN(3)]}
	q.outer.Fragments = rng.IntN(q.outer.Every + 1)
	q.outer.Quorum = len(q.workers)/2 + 1 + rng.IntN((len(q.workers)+1)/2)
	if rng.IntN(2) == 0 {
		q.outer.Rule, q.outer.Momentum = hierarchy.OuterNesterov, 0.9
	}
	q.rule = []optim.Rule{optim.SGDTorch, optim.AdamTorch}[rng.IntN(2)]
	q.wire = []chunk.DType{chunk.F32, chunk.BF16}[rng.IntN(2)]
	slow := make([]int, len(q.workers))
	for r := range slow {
		slow[r] = rng.IntN(3) * rng.IntN(300)
	}
	q.pause = func(rack, step int) int {
		rng := rand.New(rand.NewPCG(seed, uint64(rack)<<32|uint64(step)))
		if rng.IntN(10) == 0 {
			return rng.IntN(3000)
		}
		return rng.IntN(20 + slow[rack])
	}
	return q
}

// Racks that may miss meetings have the bits that plain Go makes of the leader's words, whatever their paces, shape and wire, and
// the order of pushes. All hear the same words.
func TestRacksThatMayMissMeetingsEqualPlainGo(t *testing.T) {
	kinds, seeds := map[hierarchy.WordKind]int{}, racksSeeds(t, 24)
	for seed := range seeds {
		q := anyQuorum(seed)
		name := fmt.Sprintf("seed %d: workers %v, %v, %d pods, %v, %v, %v, %d lanes, window %d", seed, q.workers, q.topology.Shape,
			q.topology.Pods, q.outer, q.rule, q.wire, q.lanes, q.window)
		if !t.Run(name, func(t *testing.T) {
			for _, w := range q.try(t).words[0] {
				kinds[w.Kind]++
			}
		}) {
			return
		}
	}
	for _, k := range []hierarchy.WordKind{hierarchy.Held, hierarchy.Late} {
		if kinds[k] == 0 && seeds >= 8 { // in few no rack may be late
			t.Errorf("of %v no word was %v", kinds, k)
		}
	}
}

// slowRack is a run of three racks of which two make a quorum, and one takes a hundred times as long for a step.
func slowRack(slow int, shape hierarchy.Shape) *quorumRun {
	return &quorumRun{
		seed: 5, topology: hierarchy.Topology{Shape: shape, Racks: 3}, workers: []int{2, 1, 2}, rule: optim.AdamTorch, wire: chunk.F32,
		lanes: 2, window: 4, periods: 4,
		outer: hierarchy.Outer{Every: 2, Fragments: 2, Rule: hierarchy.OuterNesterov, LR: 0.7, Momentum: 0.9, Quorum: 2},
		pause: func(rack, _ int) int {
			if rack == slow {
				return 6000
			}
			return 20
		},
	}
}

// Whichever rack is always late, the leader's or one that owns chunks, the others meet without it, and it goes on with their
// results.
func TestTheOthersMeetWithoutARackThatIsAlwaysLate(t *testing.T) {
	racks := 3
	if testing.Short() {
		racks = 1
	}
	for slow := range racks {
		for _, shape := range []hierarchy.Shape{hierarchy.Sharded, hierarchy.Chain} {
			t.Run(fmt.Sprintf("%v, rack %d", shape, slow), func(t *testing.T) {
				q := slowRack(slow, shape)
				missed, alone := 0, 0
				for _, w := range q.try(t).words[0] {
					switch {
					case w.Kind == hierarchy.Alone && w.Rack == slow:
						alone++
					case w.Kind == hierarchy.Held && w.Racks>>slow&1 == 0:
						missed++
					}
				}
				if want := q.periods * q.outer.Fragments; missed < want || alone == 0 {
					t.Errorf("rack %d has missed %d meetings, want %d, and went on alone %d times", slow, missed, want, alone)
				}
			})
		}
	}
}

// With a quorum of all racks, nobody misses anything, and the bits are those of racks that meet without one.
func TestAQuorumOfAllHasTheBitsOfNoQuorum(t *testing.T) {
	workers := []int{2, 1, 2}
	o := hierarchy.Outer{Every: 3, Fragments: 2, Rule: hierarchy.OuterNesterov, LR: 0.7, Momentum: 0.9}
	for _, quorum := range []int{0, 3} {
		with := o
		with.Quorum = quorum
		top := hierarchy.Topology{Shape: hierarchy.Sharded, Racks: len(workers)}
		c, network := simCluster(t, 4, top, workers, racktest.Config{
			Lanes: 2, Window: 4, Shuffle: 7, Tensors: tensorsOf(chunk.BF16, 1, 5000, 1023, 9000),
			Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.AdamTorch, Hyper: optim.AdamTorch.Defaults(),
				ChunkBytes: 4096, Outer: with},
		})
		exchangeOuter(t, 4, c, o, workers, 1, 7, network)
	}
}

// A lane that hears of other racks in a meeting than the rest ends the job: no chunk meets with a rack that others meet without.
func TestAChunkThatMeetsOtherRacksEndsTheJob(t *testing.T) {
	q := slowRack(3, hierarchy.Sharded)
	q.outer.Fragments, q.outer.Quorum = 1, 3
	p := q.open(t)
	if err := p.broadcast(); err != nil {
		t.Fatal(err)
	}
	p.c.Racks[1].Job.Mishear(1, hierarchy.Word{Kind: hierarchy.Held, Racks: 0b011})
	if err := p.run(); err == nil {
		t.Error("all steps are taken")
	}
	if why := p.failures(); !strings.Contains(why, "hold meetings of different racks") {
		t.Errorf("the job failed by %s", why)
	}
}

// A rack's aggregator that dies ends the job in the others by its name, also if they would meet without the rack.
func TestAnAggregatorThatDiesEndsTheJobAlsoWithAQuorum(t *testing.T) {
	q := slowRack(2, hierarchy.Sharded)
	p := q.open(t)
	if err := p.broadcast(); err != nil {
		t.Fatal(err)
	}
	network, rounds := p.network, 0
	p.network = func() {
		if rounds++; rounds == 500 {
			fabric.KillSim(fabric.Device(p.c.Racks[2].Config.NICs[0].Handle()))
		}
		network()
	}
	if err := p.run(); err == nil {
		t.Error("all steps are taken")
	}
	for round := 0; p.c.Racks[0].Job.Failure() == nil && round < 200_000; round++ {
		network()
		for _, l := range p.c.Racks[0].Engine.Lanes() {
			if _, err := l.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if f := p.c.Racks[0].Job.Failure(); f == nil || !strings.Contains(f.Err.Error(), `rack "rack2"`) {
		t.Errorf("rack 0's job failed by %v: want it to name rack 2", f)
	}
}

// spin is a cluster of which rack 2 comes to meetings over and over, and the workers of the others wait.
func spin(t *testing.T) (p *paced, leader *aggregate.Job) {
	q := slowRack(3, hierarchy.Sharded)
	q.lanes = 1
	p = q.open(t)
	if err := p.broadcast(); err != nil {
		t.Fatal(err)
	}
	leader = p.c.Racks[0].Job
	leader.AwayThere(0)
	leader.AwayThere(1)
	return p, leader
}

// turn is a round of the first lanes of all racks.
func (p *paced) turn() {
	p.t.Helper()
	p.network()
	for i, r := range p.c.Racks {
		if _, err := r.Engine.Lanes()[0].Step(); err != nil {
			p.t.Fatalf("rack %d: %v", i, err)
		}
	}
}

// A rack that makes the leader say more and more, and acknowledges nothing, ends the job by its name: what waits for it is bounded.
func TestARackThatAcknowledgesNoWordsEndsTheJobByName(t *testing.T) {
	p, leader := spin(t)
	leader.Unheard(2)
	n, most := 0, 0
	for ; leader.Failure() == nil && n < 2*aggregate.MostWords; n++ {
		if leader.Come(2); n%64 == 0 {
			p.turn()
			most = max(most, leader.Words())
		}
	}
	if n < aggregate.MostWords || most > 2*aggregate.MostWords {
		t.Errorf("of %d words %d were kept, and %d may wait", n, most, aggregate.MostWords)
	}
	switch f := leader.Failure(); {
	case f == nil:
		t.Error("the job goes on")
	case !errors.Is(f.Err, aggregate.ErrPeerLost) || !strings.Contains(f.Err.Error(), `lost: rack "rack2"`):
		t.Errorf("the job failed by %v: want rack 2 lost", f.Err)
	}
}

// Words are forgotten as they are sent, also if the leader never falls silent: there is always one that has not been heard.
func TestWordsThatAllWereSentAreForgotten(t *testing.T) {
	p, leader := spin(t)
	most := 0
	const turns = 10_000 // up to a thousand of them until a word is acknowledged
	for n := range turns {
		if n%2 == 0 {
			leader.Come(2)
		}
		p.turn()
		most = max(most, leader.Words())
	}
	if most > turns/5 {
		t.Errorf("of %d words %d were kept, of racks that acknowledge all", turns/2, most)
	}
	if why := p.failures(); why != "" {
		t.Error(why)
	}
}

// Of workers that wait and go on while the leader cannot be reached one notice waits, the last.
func TestTheLeaderIsToldHowWaitingEnded(t *testing.T) {
	for _, last := range []bool{false, true} {
		if said := aggregate.Unreached(!last, last, !last, last); !slices.Equal(said, []bool{last}) {
			t.Errorf("of workers that wait (true) and go on, at last %t, these notices wait: %v", last, said)
		}
	}
	p, _ := spin(t)
	for range 1000 {
		p.c.Racks[1].Job.Away(true)
		p.c.Racks[1].Job.Away(false)
	}
	p.turn()
	if n := p.c.Racks[1].Job.Unsaid(); n > 1 {
		t.Errorf("%d notices wait", n)
	}
}

// Initial values are broadcast before the first step, and not between steps that may be different ones.
func TestRacksThatMayMissMeetingsBroadcastFirst(t *testing.T) {
	q := slowRack(3, hierarchy.Sharded)
	p := q.open(t)
	err := p.broadcast()
	if err == nil {
		err = p.run()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.broadcast(); err == nil {
		t.Error("a broadcast between steps is taken")
	}
	if why := p.failures(); !strings.Contains(why, "broadcast first") {
		t.Errorf("the job failed by %s", why)
	}
}
