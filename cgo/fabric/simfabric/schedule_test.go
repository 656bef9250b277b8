package simfabric_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/verbs"
)

var replay = flag.Int64("sim.seed", -1, "replay this one schedule of TestSchedulesKeepTheContract and print its events")

const (
	meshHosts    = 3
	meshWindow   = 4
	meshMessages = 25
	meshSteps    = 50_000
)

// lane is one direction of a queue pair, with what the contract says must come of it.
type lane struct {
	from, to                     *host
	sqp, rqp                     *verbs.QP
	slot                         int
	posted, ended, ok, delivered int
	failed                       bool
}

func (l *lane) at(seq int) int { return (l.slot*meshWindow + seq%meshWindow) * 8 }

func (l *lane) post() error {
	for l.posted < min(l.ended+meshWindow, meshMessages) {
		at := l.at(l.posted)
		binary.LittleEndian.PutUint64(l.from.buf.Bytes()[at:], uint64(l.slot)<<32|uint64(l.posted))
		if _, err := l.sqp.PostSend([]verbs.SendWR{{
			WRID: uint64(l.posted), LAddr: l.from.mr.Addr + uint64(at), LKey: l.from.mr.LKey,
			RAddr: l.to.mr.Addr + uint64(at), RKey: l.to.mr.RKey, Length: 8, Imm: uint32(l.posted),
			Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled,
		}}); err != nil {
			return err
		}
		l.posted++
	}
	return nil
}

// mesh is hosts with a queue pair between each two, all sending both ways.
type mesh struct {
	t     testing.TB
	w     *simfabric.World
	hosts []*host
	rng   *rand.Rand
	lost  map[*host]bool          // its completion queue overran
	dead  map[*host]bool          // it was killed
	cut   map[*host]time.Duration // the time at which its link returns
	sends map[uint32]*lane
	recvs map[uint32]*lane
	lanes []*lane
}

func newMesh(t testing.TB, seed uint64) *mesh {
	m := &mesh{t: t, w: newWorld(t, seed), rng: rand.New(rand.NewPCG(seed, 0)), lost: map[*host]bool{}, dead: map[*host]bool{},
		cut: map[*host]time.Duration{}, sends: map[uint32]*lane{}, recvs: map[uint32]*lane{}}
	for range meshHosts {
		m.hosts = append(m.hosts, newHost(t, m.w, "", 64, 4096))
	}
	for i, a := range m.hosts {
		for _, b := range m.hosts[i+1:] {
			qa, qb := join(t, a, b, meshWindow)
			m.add(a, b, qa, qb)
			m.add(b, a, qb, qa)
		}
	}
	return m
}

func (m *mesh) add(from, to *host, sqp, rqp *verbs.QP) {
	l := &lane{from: from, to: to, sqp: sqp, rqp: rqp, slot: len(m.lanes)}
	m.lanes = append(m.lanes, l)
	m.sends[sqp.Num()], m.recvs[rqp.Num()] = l, l
	to.check(rqp.PostRecv(^uint64(0), meshWindow))
}

// take checks one completion against its lane: in order, each work request once, success only for what arrived.
func (m *mesh) take(h *host, wc verbs.WC) {
	if wc.WRID == ^uint64(0) {
		l := m.recvs[wc.QPNum]
		if wc.Status != verbs.WCSuccess {
			return
		}
		if got := binary.LittleEndian.Uint64(h.buf.Bytes()[l.at(l.delivered):]); wc.Imm != uint32(l.delivered) ||
			got != uint64(l.slot)<<32|uint64(l.delivered) || l.delivered >= l.posted {
			m.t.Errorf("lane %d: delivery %d has immediate %d and payload 0x%x", l.slot, l.delivered, wc.Imm, got)
		}
		l.delivered++
		h.check(l.rqp.PostRecv(^uint64(0), 1))
		return
	}
	l := m.sends[wc.QPNum]
	if wc.WRID != uint64(l.ended) || (wc.Status == verbs.WCSuccess && l.failed) {
		m.t.Errorf("lane %d: send %d ended (%s), expected %d; failed before: %v", l.slot, wc.WRID, wc.Status, l.ended,
			l.failed)
	}
	l.ended++
	if wc.Status == verbs.WCSuccess {
		l.ok++
	} else {
		l.failed = true
	}
}

// turn lets one event happen, then every host act. It returns how many messages of living hosts are in flight.
func (m *mesh) turn() int {
	inFlight := m.w.Step()
	for _, h := range m.hosts {
		if m.lost[h] {
			continue
		}
		if err := h.poll(); err != nil {
			if !errors.Is(err, syscall.EOVERFLOW) {
				m.t.Error(err)
			}
			m.lost[h] = true
		}
		for _, wc := range h.got {
			m.take(h, wc)
		}
		h.got = h.got[:0]
	}
	for _, l := range m.lanes {
		before := l.posted
		if !m.lost[l.from] && l.sqp.State() == verbs.StateRTS {
			l.from.check(l.post())
		}
		inFlight += l.posted - before
	}
	return inFlight
}

// plan holds the faults of a schedule. Chances are in 1/65536 for each step.
type plan struct {
	simfabric.Network
	linkDown int // a host's link goes down for up to linkDownMax
	kill     int // a host dies, at most one
}

const linkDownMax = 300 * time.Millisecond

// strike draws the faults that strike hosts rather than messages.
func (m *mesh) strike(p plan) {
	for _, h := range m.hosts {
		if up, cut := m.cut[h]; cut && m.w.Now() >= up {
			simfabric.Link(h.dev, true)
			delete(m.cut, h)
		}
	}
	h := m.hosts[m.rng.IntN(meshHosts)]
	if _, cut := m.cut[h]; !cut && m.rng.IntN(65536) < p.linkDown {
		simfabric.Link(h.dev, false)
		m.cut[h] = m.w.Now() + time.Duration(m.rng.Int64N(int64(linkDownMax)))
	}
	if len(m.dead) == 0 && m.rng.IntN(65536) < p.kill {
		simfabric.Kill(h.dev)
		m.dead[h] = true
	}
}

func (m *mesh) run(p plan) {
	m.w.SetNetwork(p.Network)
	steps := 0
	for m.turn() > 0 {
		m.strike(p)
		if steps++; steps > meshSteps {
			m.t.Errorf("not over after %d steps and %v", steps, m.w.Now())
			return
		}
	}
	for _, l := range m.lanes {
		if !m.lost[l.to] && l.ok > l.delivered {
			m.t.Errorf("lane %d: %d sends succeeded, %d arrived", l.slot, l.ok, l.delivered)
		}
		dead := m.dead[l.from] && l.sqp.State() == verbs.StateRTS // its host's completions never come
		late := l.ended < l.posted || (l.ended < meshMessages && !l.failed && l.sqp.State() == verbs.StateRTS)
		if !m.lost[l.from] && !dead && late {
			m.t.Errorf("lane %d: %d of %d posted sends ended, in %v", l.slot, l.ended, l.posted, l.sqp.State())
		}
	}
}

// faultsOf draws a plan: none, those that only disturb, or those that end things too.
func faultsOf(seed uint64) plan {
	f := plan{Network: simfabric.Network{DelayMax: 100 * time.Microsecond, FatalMax: 2, ByTime: seed%8 >= 4}}
	if seed%4 > 0 {
		f.Delay, f.Drop, f.RNR = 3000, 2000, 2000
	}
	if seed%4 > 1 {
		f.linkDown = 100
	}
	if seed%4 > 2 {
		f.StaleKey, f.QPFail, f.CQOverrun, f.kill, f.SilentClose = 200, 200, 200, 50, 30000
	}
	return f
}

func schedule(t *testing.T, seed uint64, trace int) (hash uint64) {
	t.Helper()
	m := newMesh(t, seed)
	m.w.Trace(trace)
	m.run(faultsOf(seed))
	if f := faultsOf(seed); f.Drop == 0 {
		for _, l := range m.lanes {
			if l.ok != meshMessages || l.delivered != meshMessages {
				t.Errorf("lane %d: without faults %d of %d messages arrived", l.slot, l.delivered, meshMessages)
			}
		}
	}
	return m.w.LogHash()
}

// Whatever goes wrong, each queue pair delivers in order, each message once, and every send of a living host ends.
func TestSchedulesKeepTheContract(t *testing.T) {
	if *replay >= 0 {
		schedule(t, uint64(*replay), int(os.Stderr.Fd()))
		return
	}
	hashes := map[uint64]uint64{}
	for seed := range uint64(400) {
		t.Run("", func(t *testing.T) {
			hash := schedule(t, seed, -1)
			if t.Failed() {
				t.Fatalf("replay with: go test ./cgo/fabric/simfabric -run KeepTheContract -sim.seed=%d", seed)
			}
			if seed%10 == 0 && schedule(t, seed, -1) != hash {
				t.Errorf("seed %d gave two schedules", seed)
			}
			if other, ok := hashes[hash]; ok {
				t.Errorf("seeds %d and %d gave one schedule", seed, other)
			}
			hashes[hash] = seed
		})
	}
}
