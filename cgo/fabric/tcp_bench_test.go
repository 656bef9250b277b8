package fabric_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
)

// exchange is what provider tcp is asked to do here: messages of one size both ways at once over some connections, the near
// end one owner, the far end one owner for each share of the connections.
type exchange struct {
	connections, peers, size, depth int
	messages                        int // each way, on each connection
}

func (x exchange) bytes() int64 { return int64(x.connections) * int64(x.messages) * int64(x.size) }

// party is one owner: a node and its queue pairs, with what its peer needs to be written to.
type party struct {
	n        *node
	qps      []*fabric.QP
	out, in  []fabric.MR
	peerIn   []fabric.MR
	target   [][]byte
	index    map[uint32]int
	sent     []int
	acked    []int
	received []int
	wr       []fabric.SendWR
	wc       []fabric.WC
}

func newParty(b *testing.B, x exchange, connections int) *party {
	p := &party{n: newNode(b, "", connections*x.depth*4), index: map[uint32]int{}, wr: make([]fabric.SendWR, x.depth),
		wc: make([]fabric.WC, 64)}
	for i := range connections {
		qp := p.n.newQP(2*x.depth, 2*x.depth)
		out, in := memory(b, x.depth*x.size), memory(b, x.depth*x.size)
		fillRandom(out, uint64(i))
		p.target = append(p.target, in)
		p.qps = append(p.qps, qp)
		p.out, p.in = append(p.out, p.n.register(out, accessAll)), append(p.in, p.n.register(in, accessAll))
		p.index[qp.Num()] = i
		check(b, qp.PostRecv(0, 2*x.depth))
	}
	p.sent, p.acked, p.received = make([]int, connections), make([]int, connections), make([]int, connections)
	return p
}

// post sends what the depth allows on a connection, in one list; the last of it is signaled.
func (p *party) post(x exchange, i int) error {
	n := min(x.messages-p.sent[i], x.depth-(p.sent[i]-p.acked[i]))
	if n < min(x.messages-p.sent[i], x.depth/4) || n == 0 {
		return nil
	}
	for k := range n {
		off := uint64((p.sent[i] + k) % x.depth * x.size)
		p.wr[k] = fabric.SendWR{WRID: uint64(p.sent[i] + k + 1), LAddr: p.out[i].Addr + off, LKey: p.out[i].LKey,
			RAddr: p.peerIn[i].Addr + off, RKey: p.peerIn[i].RKey, Length: uint32(x.size), Opcode: fabric.OpWriteWithImm,
			Imm: uint32(p.sent[i] + k)}
	}
	p.wr[n-1].Flags = fabric.SendSignaled
	p.sent[i] += n
	_, err := p.qps[i].PostSend(p.wr[:n])
	return err
}

// run exchanges all messages; the owner sleeps when it has nothing to do.
func (p *party) run(x exchange) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	clear(p.sent)
	clear(p.acked)
	clear(p.received)
	end := time.Now().Add(60 * time.Second)
	for left := 2 * len(p.qps); left > 0; {
		for i := range p.qps {
			if err := p.post(x, i); err != nil {
				return err
			}
		}
		n, err := p.n.cq.Poll(p.wc)
		if err != nil {
			return err
		}
		if n == 0 {
			if time.Now().After(end) {
				return fmt.Errorf("the exchange hangs: sent %v, acknowledged %v, received %v", p.sent, p.acked, p.received)
			}
			p.n.cq.Arm(1)
			p.n.cq.Wait(100 * time.Millisecond)
		}
		var again [64]int
		for _, c := range p.wc[:n] {
			i := p.index[c.QPNum]
			if c.Status != fabric.WCSuccess {
				return fmt.Errorf("completion: %s", c.Status)
			}
			if c.Opcode == fabric.WCSend {
				p.acked[i] = int(c.WRID)
				if p.acked[i] == x.messages {
					left--
				}
				continue
			}
			again[i]++
			if p.received[i]++; p.received[i] == x.messages {
				left--
			}
		}
		for i, k := range again[:len(p.qps)] {
			if k > 0 {
				p.qps[i].PostRecv(0, k)
			}
		}
	}
	// The last acknowledgements leave with this.
	p.n.cq.Wait(0)
	return nil
}

// BenchmarkTCPShareOfRoofline alternates the provider and a bare socket loop that moves the same bytes over as many connections.
func BenchmarkTCPShareOfRoofline(b *testing.B) {
	for _, x := range []exchange{
		{connections: 4, peers: 1, size: 32 << 10, depth: 32, messages: 2000},
		{connections: 4, peers: 4, size: 32 << 10, depth: 32, messages: 2000},
		{connections: 8, peers: 4, size: 32 << 10, depth: 16, messages: 1000},
		{connections: 4, peers: 1, size: 4 << 10, depth: 64, messages: 8000},
		{connections: 4, peers: 1, size: 1 << 20, depth: 4, messages: 60},
	} {
		b.Run(fmt.Sprintf("connections=%d/peers=%d/size=%d", x.connections, x.peers, x.size),
			func(b *testing.B) { shareOfRoofline(b, x) })
	}
}

// makeParties connects the far end's owners to the near end's, which comes last.
func makeParties(b *testing.B, x exchange) []*party {
	hub := newParty(b, x, x.connections)
	var far []*party
	for p := range x.peers {
		share := x.connections / x.peers
		peer := newParty(b, x, share)
		for i := range share {
			k := p*share + i
			connect(b, peer.qps[i], hub.qps[k], testAttr)
			peer.peerIn = append(peer.peerIn, hub.in[k])
			hub.peerIn = append(hub.peerIn, peer.in[i])
		}
		far = append(far, peer)
	}
	return append(far, hub)
}

func runParties(b *testing.B, parties []*party, x exchange) {
	failed := make(chan error, len(parties))
	for _, p := range parties {
		go func() { failed <- p.run(x) }()
	}
	for range parties {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
}

func shareOfRoofline(b *testing.B, x exchange) {
	parties := makeParties(b, x)
	var bare, ours []float64
	moved := float64(2 * x.bytes())
	for b.Loop() {
		took, err := fabric.TCPRoofline{Connections: x.connections, Hubs: 1, Peers: x.peers, Block: 256 << 10,
			Span: max(256<<10, x.depth*x.size), Bytes: x.bytes(), Timeout: time.Minute}.Run()
		if err != nil {
			b.Fatal(err)
		}
		bare = append(bare, moved/took.Seconds()/1e9)
		start := time.Now()
		runParties(b, parties, x)
		ours = append(ours, moved/time.Since(start).Seconds()/1e9)
	}
	roof := median(bare)
	b.ReportMetric(roof, "bareGB/s")
	b.ReportMetric(median(ours), "GB/s")
	b.ReportMetric(median(ours)/roof, "share")
	for _, p := range parties {
		for i, in := range p.target {
			if allZero(in) {
				b.Errorf("nothing arrived on connection %d", i)
			}
		}
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
