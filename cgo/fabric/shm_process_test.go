package fabric

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Set, this test binary is the other process, which sends until it is killed: "stream" without end, "few" half of what the
// receiver has room for, "hold" the same after leaving its sockets with a child, as a training process does that forks its
// data loaders.
const childEnv = "RACKWEAVE_SHM_CHILD"

func init() {
	if mode := os.Getenv(childEnv); mode != "" {
		otherProcess(mode)
	}
}

// childReport is what the child says before it streams, and orders is what it needs for that.
type (
	childReport struct{ Endpoint, Holder string }
	childOrders struct {
		Endpoint string
		RAddr    uint64
		RKey     uint32
	}
)

func otherProcess(mode string) {
	n := newNode(1024)
	qp := newQP(n, 256, false)
	m := newMemory(n, 1<<20, remote)
	for i := range m.data {
		m.data[i] = byte(i)
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	out.Encode(childReport{Endpoint: hex.EncodeToString(endpoint(qp))})
	var o childOrders
	if err := in.Decode(&o); err != nil {
		panic(err)
	}
	peer, _ := hex.DecodeString(o.Endpoint)
	must(qp.Connect(peer, ConnectConfig{Active: true}))
	report := childReport{}
	if mode == "hold" {
		report.Holder = strconv.Itoa(leaveSocketsWithAnother())
	}
	out.Encode(report)
	wc := make([]WC, 64)
	for i := uint32(0); mode == "stream" || i < killDepth/2; i++ {
		wr := SendWR{LAddr: m.mr.Addr, LKey: m.mr.LKey, RAddr: o.RAddr, RKey: o.RKey, Length: 32768, Imm: i, Opcode: OpWriteWithImm,
			Flags: SendSignaled}
		for _, err := qp.PostSend([]SendWR{wr}); err != nil; _, err = qp.PostSend([]SendWR{wr}) {
			mustGet(n.cq.Poll(wc))
		}
	}
	select {}
}

// leaveSocketsWithAnother starts a process that keeps all our sockets open, and returns its id.
func leaveSocketsWithAnother() int {
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, f := range files {
		if to, _ := os.Readlink(f); strings.HasPrefix(to, "socket:") {
			fd, _ := strconv.Atoi(filepath.Base(f))
			unix.Dup(fd) // without close-on-exec
		}
	}
	cmd := exec.Command("sleep", "30")
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd.Process.Pid
}

// child starts the other process and connects qp to it; it streams when this returns.
func child(t *testing.T, mode string, qp *QP, mr MR) (cmd *exec.Cmd, holder int) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	cmd.Stderr = os.Stderr
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	in := json.NewDecoder(bufio.NewReader(stdout))
	var r childReport
	if err := in.Decode(&r); err != nil {
		t.Fatal(err)
	}
	peer, _ := hex.DecodeString(r.Endpoint)
	must(qp.Connect(peer, ConnectConfig{}))
	json.NewEncoder(stdin).Encode(childOrders{hex.EncodeToString(endpoint(qp)), mr.Addr, mr.RKey})
	if err := in.Decode(&r); err != nil {
		t.Fatal(err)
	}
	holder, _ = strconv.Atoi(r.Holder)
	return cmd, holder
}

const killDepth = 256

func TestShmKilledPeerIsNoticedAtOnce(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		sleep      bool
	}{
		{"in mid-stream", "stream", false},
		{"while polling", "few", false},
		{"while asleep for more than will come", "few", true},
		{"while its children hold its sockets", "hold", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			took := make([]time.Duration, 5)
			for i := range took {
				took[i] = killPeer(t, c.mode, c.sleep)
			}
			slices.Sort(took)
			if took[len(took)/2] >= 100*time.Millisecond {
				t.Errorf("noticed %v after the kill, the median of %v", took[len(took)/2], took)
			}
		})
	}
}

// killPeer kills a peer and returns how long it took to notice, which is never more than a second.
func killPeer(t *testing.T, mode string, sleep bool) (took time.Duration) {
	n := newNode(4 * killDepth)
	defer n.close()
	qp := newQP(n, killDepth, false)
	defer func() { must(qp.Close()) }()
	m := newMemory(n, 1<<20, remote)
	defer m.close(n)
	must(qp.PostRecv(1, killDepth))
	cmd, holder := child(t, mode, qp, m.mr)
	if holder > 0 {
		defer unix.Kill(holder, unix.SIGKILL)
	}
	var killed atomic.Int64
	go func() {
		time.Sleep(50 * time.Millisecond)
		killed.Store(time.Now().UnixNano())
		cmd.Process.Kill()
	}()
	// What arrives is delivered, the last of it after the death, then the receives left are flushed.
	wc := make([]WC, 64)
	good, flushed := 0, 0
	for end := time.Now().Add(patient); flushed == 0; {
		if time.Now().After(end) {
			t.Fatalf("%d messages arrived, but not their sender's end", good)
		}
		if sleep {
			must(n.cq.Arm(10 * killDepth))
			mustGet(n.cq.Wait(10 * time.Second))
		}
		k := mustGet(n.cq.Poll(wc))
		for _, w := range wc[:k] {
			if w.Status == 0 && flushed == 0 {
				good++
			} else if w.Status != 5 {
				t.Fatalf("after %d good and %d flushed: %+v", good, flushed, w)
			} else {
				flushed++
			}
		}
		if mode == "stream" && flushed == 0 {
			must(qp.PostRecv(1, k))
		}
	}
	if took = time.Since(time.Unix(0, killed.Load())); took > patient/2 { // a second, on a machine without other work
		t.Errorf("noticed %v after the kill", took)
	}
	if good == 0 || mode != "stream" && good != killDepth/2 {
		t.Errorf("%d messages arrived", good)
	}
	if qp.State() != StateErr {
		t.Errorf("the queue pair is in state %d", qp.State())
	}
	for i := range 32768 {
		if m.data[i] != byte(i) {
			t.Fatalf("byte %d of the target is %d", i, m.data[i])
		}
	}
	return took
}

// overslept waits, and reports whether only the timeout ended that: the wait itself finds what came without a wakeup.
func overslept(cq *CQ) bool {
	start := time.Now()
	mustGet(cq.Wait(2 * time.Minute))
	return time.Since(start) > time.Minute // far more than a busy machine keeps a thread waiting
}

// Two threads exchange bursts of random size over several queue pairs and sleep whenever they find nothing. A lost wakeup
// is a wait that times out although the other side has sent.
func TestShmLosesNoWakeup(t *testing.T) {
	const qps, depth, total = 3, 32, 30000
	a, b := newNode(1024), newNode(1024)
	defer a.close()
	defer b.close()
	var qa, qb []*QP
	for i := range qps {
		qa, qb = append(qa, newQP(a, depth, false)), append(qb, newQP(b, depth, false))
		connect(qa[i], qb[i], ConnectConfig{})
	}
	defer func() {
		for i := range qps {
			must(qa[i].Close())
			must(qb[i].Close())
		}
	}()
	var received atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, qp := range qb {
			must(qp.PostRecv(0, depth/2)) // fewer than are sent: the sender sleeps for receives too
		}
		byNum := map[uint32]*QP{}
		for _, qp := range qb {
			byNum[qp.Num()] = qp
		}
		rng := rand.New(rand.NewPCG(1, 2))
		wc := make([]WC, 16)
		for got := 0; got < total; {
			k := mustGet(b.cq.Poll(wc))
			if k == 0 {
				must(b.cq.Arm(1))
				if k = mustGet(b.cq.Poll(wc)); k == 0 && overslept(b.cq) {
					t.Errorf("the receiver slept though %d of %d had come", got, total)
					return
				}
			}
			for _, w := range wc[:k] {
				must(byNum[w.QPNum].PostRecv(0, 1))
			}
			got += k
			received.Store(int64(got))
			if k > 0 && rng.IntN(8) == 0 {
				spinFor(rng.IntN(20))
			}
		}
	})
	rng := rand.New(rand.NewPCG(3, 4))
	wr, wc := make([]SendWR, 12), make([]WC, 64)
	for i := range wr {
		wr[i] = SendWR{Opcode: OpWriteWithImm, Flags: SendSignaled}
	}
	inFlight := 0
	for sent := 0; sent < total || inFlight > 0; {
		for k := 0; inFlight < qps*depth/2 && sent < total && k < 3; k++ {
			n, _ := qa[rng.IntN(qps)].PostSend(wr[:min(1+rng.IntN(12), total-sent)])
			sent += n
			inFlight += n
		}
		k := mustGet(a.cq.Poll(wc))
		if k == 0 {
			must(a.cq.Arm(1))
			if k = mustGet(a.cq.Poll(wc)); k == 0 && overslept(a.cq) {
				t.Errorf("the sender slept though %d of %d were received", received.Load(), total)
				break
			}
		}
		for _, w := range wc[:k] {
			if w.Status != 0 {
				t.Errorf("the sender's completion: %+v", w)
				sent, inFlight = total, k
			}
		}
		inFlight -= k
		if rng.IntN(16) == 0 {
			spinFor(rng.IntN(30))
		}
	}
	wg.Wait()
}

// One thread arms and waits at the moment when the other posts: either the one sees the message, or the other the wish.
func TestShmPostingWhileThePeerArmsWakesIt(t *testing.T) {
	const total = 20000
	p := newPair(t, 16, false)
	must(p.qb.PostRecv(0, 8))
	var received atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		wc := make([]WC, 16)
		for got := 0; got < total; {
			must(p.b.cq.Arm(1))
			if overslept(p.b.cq) {
				t.Errorf("asleep though message %d was sent", got)
				received.Store(-1)
				return
			}
			k := mustGet(p.b.cq.Poll(wc))
			must(p.qb.PostRecv(0, k))
			got += k
			received.Store(int64(got))
		}
	})
	wr, wc := []SendWR{{Opcode: OpWriteWithImm, Flags: SendSignaled}}, make([]WC, 1)
	rng := rand.New(rand.NewPCG(5, 6))
	defer wg.Wait()
	for i := range int64(total) {
		for spins := 0; received.Load() < i; spins++ {
			if received.Load() < 0 {
				return
			}
			if spins > 1000 {
				runtime.Gosched()
			}
		}
		for range rng.IntN(300) {
			received.Load()
		}
		mustGet(p.qa.PostSend(wr))
		mustGet(p.a.cq.Poll(wc))
	}
}

// spinFor lets some microseconds pass without sleeping, to move the threads against each other.
func spinFor(us int) {
	for end := time.Now().Add(time.Duration(us) * time.Microsecond); time.Now().Before(end); {
		runtime.Gosched()
	}
}

// state is what a process must not have more of after its connections are gone.
type state struct{ files, mappings int }

func processState(tb testing.TB) state {
	tb.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		tb.Fatal(err)
	}
	return state{openFiles(tb), strings.Count(string(maps), "memfd:")}
}

func TestShmLeavesNothingBehind(t *testing.T) {
	before := processState(t)
	for round := range 10 {
		a, b := newNode(256), newNode(256)
		var qps [8]*QP
		ma, mb := newMemory(a, 1<<20, remote), newMemory(b, 1<<20, remote)
		for i := 0; i < len(qps); i += 2 {
			qps[i], qps[i+1] = newQP(a, 16, i%4 == 0), newQP(b, 16, i%4 == 0)
			connect(qps[i], qps[i+1], ConnectConfig{})
			must(qps[i+1].PostRecv(1, 4))
			mustGet(qps[i].PostSend([]SendWR{{LAddr: ma.mr.Addr, LKey: ma.mr.LKey, RAddr: mb.mr.Addr, RKey: mb.mr.RKey,
				Length: 64, Opcode: OpWriteWithImm}}))
			polled(t, b.cq, 1)
		}
		// Regions come and go while connected, and one connection attempt fails.
		for range 5 {
			newMemory(a, 4096, remote).close(a)
			b.progress()
		}
		lost := newQP(a, 16, false)
		if lost.Connect(endpoint(qps[1]), ConnectConfig{Active: true, Timeout: 50 * time.Millisecond}) == nil {
			t.Fatal("connected to a queue pair that has its peer")
		}
		must(lost.Close())
		for i, qp := range qps {
			if (i+round)%3 == 0 {
				must(qp.Fail())
			}
		}
		for _, qp := range qps {
			must(qp.Close())
		}
		ma.close(a)
		mb.close(b)
		a.close()
		b.close()
	}
	// Fewer are no leak: the collector closes what earlier tests left.
	if after := processState(t); after.files > before.files || after.mappings > before.mappings {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestShmDeregisteredPayloadStaysReadable(t *testing.T) {
	p := newPair(t, 16, true)
	m := newMemory(p.a, 1<<16, remote)
	m.data[100] = 42
	must(p.qb.PostRecv(1, 2))
	mustGet(p.qa.PostSend([]SendWR{{LAddr: m.mr.Addr + 100, LKey: m.mr.LKey, RAddr: p.mb.mr.Addr, RKey: p.mb.mr.RKey,
		Length: 1, Opcode: OpWriteWithImm}}))
	wc := polled(t, p.b.cq, 1)[0]
	payload := (*byte)(address(wc.Addr))
	if *payload != 42 {
		t.Fatalf("the payload is %d", *payload)
	}
	m.close(p.a)
	for end := time.Now().Add(patient); *payload != 0; p.b.progress() {
		if time.Now().After(end) {
			t.Fatal("the region was not given back")
		}
	}
	reply := SendWR{LAddr: p.mb.mr.Addr, LKey: p.mb.mr.LKey, RAddr: wc.SrcAddr, RKey: wc.SrcRKey, Length: 1, Opcode: OpWriteWithImm,
		Flags: SendSignaled}
	mustGet(p.qb.PostSend([]SendWR{reply}))
	if got := polled(t, p.b.cq, 2)[0]; got.Status != 10 {
		t.Errorf("a reply to the deregistered region completed with %d", got.Status)
	}
}

// More regions than a socket holds messages for: the rest follow as the peer reads.
func TestShmManyRegionsReachAPeerThatReadsLate(t *testing.T) {
	const regions = 600
	p := newPair(t, 16, false)
	var all []*memory
	for range regions {
		all = append(all, newMemory(p.b, 4096, remote))
	}
	defer func() {
		for _, m := range all {
			m.close(p.b)
		}
	}()
	must(p.qb.PostRecv(1, 3))
	for i, m := range []*memory{all[0], all[regions/2], all[regions-1]} {
		p.ma.data[0] = byte(i + 1)
		mustGet(p.qa.PostSend([]SendWR{{
			LAddr: p.ma.mr.Addr, LKey: p.ma.mr.LKey, RAddr: m.mr.Addr, RKey: m.mr.RKey, Length: 1, Opcode: OpWriteWithImm,
			Flags: SendSignaled,
		}}))
		for done, out := 0, make([]WC, 4); done < 2; {
			k := mustGet(p.a.cq.Poll(out))
			k += mustGet(p.b.cq.Poll(out[k:]))
			for _, wc := range out[:k] {
				if wc.Status != 0 {
					t.Fatalf("region %d: %+v", i, wc)
				}
			}
			done += k
		}
		if m.data[0] != byte(i+1) {
			t.Errorf("region %d was not written", i)
		}
	}
}

// A region of a sparse file costs nobody memory until it is touched, and then that of the pages touched.
func TestShmSparseRegionStaysSparse(t *testing.T) {
	p := newPair(t, 16, false)
	const size = 1 << 30
	m := newMemory(p.b, size, remote)
	defer m.close(p.b)
	must(p.qb.PostRecv(1, 1))
	p.ma.data[0] = 5
	mustGet(p.qa.PostSend([]SendWR{{LAddr: p.ma.mr.Addr, LKey: p.ma.mr.LKey, RAddr: m.mr.Addr + size - 1, RKey: m.mr.RKey, Length: 1,
		Opcode: OpWriteWithImm}}))
	polled(t, p.b.cq, 1)
	if m.data[size-1] != 5 {
		t.Error("the last byte was not written")
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil || st.Blocks*512 > size/64 {
		t.Errorf("%d bytes of %d are allocated, %v", st.Blocks*512, size, err)
	}
}

func TestShmPeerThatNeverComesIsGivenUpByASleeper(t *testing.T) {
	n, other := newNode(64), newNode(64)
	defer n.close()
	defer other.close()
	qp, peer := newQP(n, 16, false), newQP(other, 16, false)
	defer func() { must(qp.Close()); must(peer.Close()) }()
	must(qp.PostRecv(3, 2))
	must(qp.Connect(endpoint(peer), ConnectConfig{Timeout: 100 * time.Millisecond}))
	start := time.Now()
	must(n.cq.Arm(64))
	if !mustGet(n.cq.Wait(patient)) {
		t.Fatal("the sleeper was not woken")
	}
	if took := time.Since(start); took < 50*time.Millisecond || took > patient/2 {
		t.Errorf("given up after %v", took)
	}
	for _, wc := range polled(t, n.cq, 2) {
		if wc.Status != 5 || wc.WRID != 3 {
			t.Errorf("completion %+v", wc)
		}
	}
	for end := time.Now().Add(patient); n.events[EventQPFatal].Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no event")
		}
	}
	if n.events[EventQPFatal].Load() != 1 {
		t.Errorf("%d fatal events", n.events[EventQPFatal].Load())
	}
}
