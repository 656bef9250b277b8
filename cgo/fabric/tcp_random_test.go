package fabric_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
)

// TestTCPRandomTrafficCompletes is a property: whatever the sizes, the lists, the turns of the owners and the receives they
// post, every message arrives once, in order, with its bytes, and every signaled send completes. Small buffers make frames
// stop half way everywhere.
func TestTCPRandomTrafficCompletes(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomTraffic(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

// flow is the traffic from one side of a rig to the other.
type flow struct {
	from, to               *node
	send, recv             *fabric.QP
	source, target         []byte
	src, dst               fabric.MR
	sizes, offsets         []int
	posted, signaled, done int // messages posted, signaled sends among them, completions of those
	got, granted           int // messages received, receives posted
}

func randomTraffic(t *testing.T, r *rand.Rand) {
	const messages, arena = 120, 2 << 20
	n := [2]*node{}
	for i := range n {
		options := "window=65536,sndbuf=65536,rcvbuf=262144"
		if _, has := hasTLS(t); i == 1 && r.IntN(2) == 0 && has {
			options += ",encrypt=yes" // one side is enough
		}
		n[i] = newNode(t, options, 1024)
	}
	flows := [2]*flow{}
	for i := range flows {
		f := &flow{from: n[i], to: n[1-i], source: memory(t, arena), target: memory(t, arena)}
		fillRandom(f.source, r.Uint64())
		f.src, f.dst = f.from.register(f.source, accessAll), f.to.register(f.target, accessAll)
		for offset := 0; len(f.sizes) < messages; {
			size := r.IntN(1 << r.IntN(18))
			if r.IntN(40) == 0 {
				size = r.IntN(300_000)
			}
			if size = min(size, arena-offset); r.IntN(8) == 0 {
				size = 0
			}
			f.sizes, f.offsets = append(f.sizes, size), append(f.offsets, offset)
			offset += size
		}
		flows[i] = f
	}
	qa, qb := n[0].newQP(32, 32), n[1].newQP(32, 32)
	connect(t, qa, qb, fabric.ConnectConfig{Timeout: 5 * time.Second, RNRTimeout: 10 * time.Second})
	flows[0].send, flows[0].recv, flows[1].send, flows[1].recv = qa, qb, qb, qa
	complete := func() bool {
		for _, f := range flows {
			if f.got < messages || f.posted < messages || f.done < f.signaled {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(patience); !complete(); {
		f := flows[r.IntN(2)]
		switch r.IntN(4) {
		case 0:
			f.post(t, r)
		case 1:
			if k := min(r.IntN(8), 32-(f.granted-f.got)); k > 0 {
				check(t, f.recv.PostRecv(0, k))
				f.granted += k
			}
		default:
			f.take(t, flows, r.IntN(5))
		}
		if time.Now().After(end) {
			t.Fatalf("stuck: %+v", [2][]int{{flows[0].posted, flows[0].signaled, flows[0].done, flows[0].got, flows[0].granted},
				{flows[1].posted, flows[1].signaled, flows[1].done, flows[1].got, flows[1].granted}})
		}
	}
	for _, f := range flows {
		last := len(f.sizes) - 1
		if end := f.offsets[last] + f.sizes[last]; !bytes.Equal(f.source[:end], f.target[:end]) {
			t.Error("the target differs from the source")
		}
	}
}

// post sends a list of random length, its last message signaled.
func (f *flow) post(t *testing.T, r *rand.Rand) {
	var wrs []fabric.SendWR
	for k := range min(r.IntN(12), len(f.sizes)-f.posted) {
		i := f.posted + k
		wrs = append(wrs, fabric.SendWR{LAddr: f.src.Addr + uint64(f.offsets[i]), LKey: f.src.LKey,
			RAddr: f.dst.Addr + uint64(f.offsets[i]), RKey: f.dst.RKey, Length: uint32(f.sizes[i]), Imm: uint32(i),
			Opcode: fabric.OpWriteWithImm, Flags: fabric.SendSignaled})
	}
	n, err := f.send.PostSend(wrs)
	if err != nil && !errors.Is(err, syscall.ENOMEM) {
		t.Fatal(err)
	}
	f.posted += n
	f.signaled += n
}

// take polls the sending node's queue, which is the receiving one's of the other flow.
func (f *flow) take(t *testing.T, flows [2]*flow, most int) {
	wc := make([]fabric.WC, most)
	n, err := f.from.cq.Poll(wc)
	check(t, err)
	other := flows[0]
	if f == other {
		other = flows[1]
	}
	for _, c := range wc[:n] {
		switch {
		case c.Status != fabric.WCSuccess:
			t.Fatalf("completion: %s", c.Status)
		case c.Opcode == fabric.WCSend:
			f.done++
		case c.Imm != uint32(other.got) || c.ByteLen != uint32(other.sizes[other.got]):
			t.Fatalf("message %d of %d bytes arrived, want %d of %d", c.Imm, c.ByteLen, other.got, other.sizes[other.got])
		default:
			other.got++
		}
	}
}
