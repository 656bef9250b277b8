package fabric

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// onThread runs f, which is b.N operations of bytes each, on a thread of its own and reports its time on the processor
// beside the wall's: on a busy machine only that says what the provider costs.
func onThread(b *testing.B, bytes int, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var from, to unix.Timespec
	b.ResetTimer()
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from)
	f()
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
	b.StopTimer()
	ns := float64(to.Nano() - from.Nano())
	b.ReportMetric(ns/float64(b.N), "cpu-ns/op")
	if bytes > 0 {
		b.ReportMetric(float64(b.N)*float64(bytes)/ns, "GB/cpu-s")
	}
}

// BenchmarkShmByReference is a message whose payload stays where it is: posted, polled and its receive given back, both ends
// on one thread.
func BenchmarkShmByReference(b *testing.B) {
	const batch = 16
	p := newPair(b, 64, true)
	must(p.qb.PostRecv(1, 64))
	list, wc := make([]SendWR, batch), make([]WC, 64)
	for i := range list {
		list[i] = p.write(uint64(i), i*32768, 32768, 0)
	}
	list[batch-1].Flags = SendSignaled
	onThread(b, 0, func() {
		for done := 0; done < b.N; done += batch {
			mustGet(p.qa.PostSend(list))
			if mustGet(p.a.cq.Poll(wc)) != 1 || mustGet(p.b.cq.Poll(wc)) != batch {
				b.Fatal("messages are missing")
			}
			must(p.qb.PostRecv(1, batch))
		}
	})
}

// BenchmarkShmCopy is a 32 KiB chunk, hot in the cache, sent to several queue pairs one after another, each with a target
// region of its own that does not fit the cache. One operation is one chunk to one of them.
func BenchmarkShmCopy(b *testing.B) {
	for _, c := range []struct {
		name  string
		flags SendFlags
	}{{"streaming", SendPastCache}, {"cached", 0}} {
		for _, n := range []int{1, 4, 8} {
			b.Run(fmt.Sprintf("%s/qps=%d", c.name, n), func(b *testing.B) { benchmarkCopy(b, n, SendSignaled|c.flags) })
		}
	}
}

func benchmarkCopy(b *testing.B, n int, flags SendFlags) {
	const chunk, region = 32 << 10, 64 << 20
	src, dst := newNode(4096), newNode(4096)
	source := newMemory(src, 1<<20, remote)
	var from, to []*QP
	var target []*memory
	for i := range n {
		from, to = append(from, newQP(src, 64, false)), append(to, newQP(dst, 64, false))
		target = append(target, newMemory(dst, region, remote))
		connect(from[i], to[i], ConnectConfig{})
	}
	defer func() {
		for i := range n {
			must(from[i].Close())
			must(to[i].Close())
			target[i].close(dst)
		}
		source.close(src)
		src.close()
		dst.close()
	}()
	wc, wr := make([]WC, 64), make([]SendWR, 1)
	round := func(i int) {
		for k := range n {
			must(to[k].PostRecv(1, 1))
			wr[0] = SendWR{LAddr: source.mr.Addr, LKey: source.mr.LKey, RAddr: target[k].mr.Addr + uint64(i*chunk%region),
				RKey: target[k].mr.RKey, Length: chunk, Opcode: OpWriteWithImm, Flags: flags}
			mustGet(from[k].PostSend(wr))
		}
		if mustGet(src.cq.Poll(wc)) != n || mustGet(dst.cq.Poll(wc)) != n {
			b.Fatal("messages are missing")
		}
	}
	for i := range region / chunk { // each page of the targets is mapped once
		round(i)
	}
	onThread(b, chunk, func() {
		for i := 0; i < b.N; i += n {
			round(i / n)
		}
	})
}

// BenchmarkShmPingPong is there and back of an immediate, both sides spinning or both asleep.
func BenchmarkShmPingPong(b *testing.B) {
	for _, sleep := range []bool{false, true} {
		b.Run(fmt.Sprintf("sleep=%v", sleep), func(b *testing.B) {
			p := newPair(b, 64, false)
			must(p.qa.PostRecv(1, 32))
			must(p.qb.PostRecv(1, 32))
			var wg sync.WaitGroup
			b.ResetTimer()
			wg.Go(func() { pong(p.b, p.qb, b.N, false, sleep) })
			pong(p.a, p.qa, b.N, true, sleep)
			wg.Wait()
		})
	}
}

func pong(n *node, qp *QP, rounds int, first, sleep bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	wr, wc := []SendWR{{Opcode: OpWriteWithImm, Flags: SendSignaled}}, make([]WC, 8)
	if first {
		mustGet(qp.PostSend(wr))
	}
	for got := 0; got < rounds; {
		k := mustGet(n.cq.Poll(wc))
		if k == 0 && sleep {
			must(n.cq.Arm(1))
			if k = mustGet(n.cq.Poll(wc)); k == 0 {
				mustGet(n.cq.Wait(1 * time.Second))
			}
		}
		for _, c := range wc[:k] {
			if c.Opcode == 0 {
				continue
			}
			got++
			must(qp.PostRecv(1, 1))
			if !first || got < rounds {
				mustGet(qp.PostSend(wr))
			}
		}
	}
}

// address turns an address of this process into a pointer.
func address(addr uint64) unsafe.Pointer { return unsafe.Add(nil, addr) }
