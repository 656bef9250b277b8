package worker_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// random fills memory with values of a type.
func (p *rowsPeer) random(b []byte, d chunk.DType) {
	x := make([]float32, len(b)/d.Size())
	for i := range x {
		x[i] = float32(p.r.NormFloat64())
	}
	optim.Encode(b, x, d)
}

// cast returns values in another type.
func cast(b []byte, from, to chunk.DType) []byte {
	x := make([]float32, len(b)/from.Size())
	optim.Decode(x, b, from)
	out := make([]byte, len(x)*to.Size())
	optim.Encode(out, x, to)
	return out
}

func pointer[T any](x []T) uintptr {
	if never {
		escaped = x
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(x)))
}

// What pointer is given may be stored here, for all the compiler knows, so that it is on the heap: stacks move while C writes.
var (
	never   bool
	escaped any
)

// ids draws rows of a table, ascending: none, a few, a run, most or all.
func (p *rowsPeer) ids(b *table) []int64 {
	share := []float64{0, 0.02, 0.3, 0.9, 1}[p.r.IntN(5)]
	ids := make([]int64, 0, b.rows)
	from, end := 0, b.rows
	if p.r.IntN(3) == 0 {
		from = p.r.IntN(b.rows)
		end = from + p.r.IntN(b.rows-from+1)
	}
	for i := from; i < end; i++ {
		if p.r.Float64() < share {
			ids = append(ids, int64(i))
		}
	}
	return ids
}

// start submits an operation on rows, or on all rows if ids is nil.
func (p *rowsPeer) start(op worker.Op, ids []int64) (handle uint64, rc int) {
	p.t.Helper()
	if ids != nil {
		op.IDs, op.NIDs = pointer(ids[:1:1]), uint64(len(ids))
	}
	handles := make([]uint64, 1)
	rc = worker.Submit(p.w, []worker.Op{op}, handles)
	return handles[0], rc
}

// serve answers messages in random order until the operations are done.
func (p *rowsPeer) serve() {
	p.t.Helper()
	for idle := 0; worker.Active(p.w) > 0; idle++ {
		if p.gather() > 0 {
			idle = 0
		}
		for _, lane := range p.r.Perm(len(p.lanes)) {
			for range p.r.IntN(4) {
				if p.respond(lane) {
					idle = 0
				}
			}
		}
		if idle > 50 {
			p.t.Fatalf("%d operations are in flight, and nothing comes", worker.Active(p.w))
		}
	}
}

// begin prepares a table for a gradient, and returns the rows that have results beside those of the worker.
func (p *rowsPeer) begin(b *table, ids []int64) (union []int64) {
	b.epoch = (b.epoch + 1) & chunk.EpochMask
	p.random(b.values, b.wire)
	others := p.ids(b)
	for i := range b.rows {
		if _, mine := slices.BinarySearch(ids, int64(i)); mine || ids == nil {
			union = append(union, int64(i))
		} else if _, other := slices.BinarySearch(others, int64(i)); other {
			union = append(union, int64(i))
		}
	}
	for lane := range b.streams {
		s := &b.streams[lane]
		*s = stream{got: map[int][]byte{}}
		for i, row := range b.global[lane] {
			if _, ok := slices.BinarySearch(union, int64(row)); ok {
				s.results = append(s.results, i)
			}
		}
	}
	return union
}

// checkCame compares the gradient that came with the one that was sent.
func (p *rowsPeer) checkCame(b *table, ids []int64, src []byte) {
	p.t.Helper()
	got := 0
	wire := cast(src, b.memory, b.wire)
	for lane := range b.streams {
		s := &b.streams[lane]
		if got += len(s.got); int(s.sent) != len(b.global[lane]) {
			p.t.Fatalf("lane %d: rows to %d of %d are covered", lane, s.sent, len(b.global[lane]))
		}
		for row, values := range s.got {
			at, ok := row, true
			if ids != nil {
				at, ok = slices.BinarySearch(ids, int64(row))
			}
			if !ok || !bytes.Equal(values, wire[at*b.rowBytes():][:b.rowBytes()]) {
				p.t.Fatalf("lane %d: row %d came as %x, sent %v", lane, row, values, ok)
			}
		}
	}
	want := len(ids)
	if ids == nil {
		want = b.rows
	}
	if got != want {
		p.t.Fatalf("%d rows came of %d", got, want)
	}
}

// operate starts an operation drawn at random, and returns what checks it once it is done.
func (p *rowsPeer) operate(tensor int) (check func()) {
	p.t.Helper()
	b := p.tables[tensor]
	memoryRow := b.width * b.memory.Size()
	op := worker.Op{Tensor: uint32(tensor), Kind: uint8(p.r.IntN(3)), Priority: int32(p.r.IntN(3))}
	var ids []int64
	if p.r.IntN(4) > 0 || op.Kind == uint8(chunk.OpPull) {
		ids = p.ids(b)
	}
	n := len(ids)
	if ids == nil {
		n = b.rows
	}
	if op.Kind == uint8(chunk.OpPull) {
		for i := range ids {
			ids[i] = int64(p.r.IntN(b.rows))
		}
		dst := make([]byte, n*memoryRow)
		p.random(b.values, b.wire)
		op.Dst = pointer(dst)
		_, rc := p.start(op, ids)
		p.must(rc, "submit")
		return func() {
			for i, id := range ids {
				want := cast(b.values[int(id)*b.rowBytes():][:b.rowBytes()], b.wire, b.memory)
				if !bytes.Equal(dst[i*memoryRow:][:memoryRow], want) {
					p.t.Fatalf("place %d, row %d: %x, expected %x", i, id, dst[i*memoryRow:][:memoryRow], want)
				}
			}
		}
	}
	src, dst := make([]byte, n*memoryRow), make([]byte, b.rows*memoryRow)
	p.random(src, b.memory)
	p.random(dst, b.memory)
	if ids == nil && p.r.IntN(2) == 0 {
		dst = src
	}
	union, nunion := make([]int64, b.rows), []uint64{0}
	want := p.begin(b, ids)
	sent, expected := slices.Clone(src), slices.Clone(dst)
	op.Src = pointer(src)
	if op.Kind == uint8(chunk.OpPushPull) {
		op.Dst, op.Union, op.NUnion = pointer(dst), pointer(union), pointer(nunion)
		for _, id := range want {
			copy(expected[int(id)*memoryRow:], cast(b.values[int(id)*b.rowBytes():][:b.rowBytes()], b.wire, b.memory))
		}
	} else {
		want = nil
	}
	_, rc := p.start(op, ids)
	p.must(rc, "submit")
	return func() {
		runtime.KeepAlive(src)
		p.checkCame(b, ids, sent)
		if !slices.Equal(union[:nunion[0]], want) || !bytes.Equal(dst, expected) {
			p.t.Fatalf("the union is %v, expected %v; results equal: %v", union[:nunion[0]], want, bytes.Equal(dst, expected))
		}
	}
}

func TestRowsTravelAsPlainGoReadsThem(t *testing.T) {
	types := []chunk.DType{chunk.F32, chunk.BF16, chunk.F16}
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			window := []int{4, 8, 16}[r.IntN(3)]
			tables := make([]*table, 1+r.IntN(window/4))
			for i := range tables {
				tables[i] = &table{
					rows: 1 + r.IntN(3000), width: []int{1, 3, 64, 500}[r.IntN(4)], wire: types[r.IntN(3)], memory: types[r.IntN(3)],
				}
				tables[i].rows = min(tables[i].rows, 60000/tables[i].width)
			}
			p := newRowsPeer(t, seed, 1+r.IntN(3), window, tables...)
			for range 6 {
				checks := make([]func(), len(tables))
				for i := range tables {
					checks[i] = p.operate(i)
				}
				p.serve()
				for _, check := range checks {
					check()
				}
			}
			for i, l := range p.lanes {
				if l.busy > window/2 {
					t.Errorf("lane %d: %d of %d messages were in flight", i, l.busy, window)
				}
			}
		})
	}
}

func TestRowsOnBothSidesOfALongGapTravel(t *testing.T) {
	b := &table{rows: 60_000, width: 1, wire: chunk.F32, memory: chunk.F32}
	p := newRowsPeer(t, 1, 1, 4, b)
	for _, last := range []int64{1000, 59_999} {
		var ids []int64
		for i := range int64(970) {
			ids = append(ids, i)
		}
		ids = append(ids, last)
		src := make([]byte, 4*len(ids))
		p.random(src, b.memory)
		p.begin(b, ids)
		_, rc := p.start(worker.Op{Kind: uint8(chunk.OpPush), Src: pointer(src)}, ids)
		p.must(rc, "submit")
		p.serve()
		p.checkCame(b, ids, src)
	}
}

func TestRowsFindSlotsBesideChunksThatWait(t *testing.T) {
	const window, elems = 8, 20 * chunk.MinChunkBytes / 4
	b := &table{rows: 10, width: 4, wire: chunk.F32, memory: chunk.F32}
	p := newRowsPeer(t, 1, 1, window, b)
	p.must(worker.Add(p.w, []worker.Tensor{{Elems: elems, WireType: 1, MemoryType: 1}}, make([]uint32, 20)), "add")
	dense := make([]byte, 4*elems)
	_, rc := p.start(worker.Op{Tensor: 1, Kind: uint8(chunk.OpPushPull), Src: pointer(dense), Dst: pointer(dense), Priority: 9}, nil)
	p.must(rc, "submit")
	if p.gather(); len(p.whole) != window-2 {
		t.Errorf("%d chunks came into a window of %d", len(p.whole), window)
	}
	rows, dst := make([]byte, b.rowBytes()), make([]byte, b.rows*b.rowBytes())
	p.begin(b, []int64{3})
	_, rc = p.start(worker.Op{Kind: uint8(chunk.OpPushPull), Src: pointer(rows), Dst: pointer(dst)}, []int64{3})
	p.must(rc, "submit")
	if p.gather(); len(p.lanes[0].held) != 2 {
		t.Errorf("%d messages about rows came, expected a gradient and a fetch", len(p.lanes[0].held))
	}
	for worker.Active(p.w) > 0 {
		chunks := p.whole
		p.whole = nil
		for _, m := range chunks {
			p.answer(0, m, dense[:chunk.MinChunkBytes])
		}
		p.respond(0)
		p.gather()
		if len(p.lanes[0].held)+len(p.whole) == 0 && worker.Active(p.w) > 0 {
			t.Fatal("nothing comes")
		}
	}
	runtime.KeepAlive(rows)
	runtime.KeepAlive(dst)
}

func TestPushPullOfRowsIsRefusedInModeStream(t *testing.T) {
	w, rc := worker.Open(worker.Config{ChunkBytes: 4096, Window: 4, SendDepth: 4, Staging: 4, Steps: true}, make([]worker.NIC, 1), 1)
	p := &rowsPeer{t: t, w: w}
	p.must(rc, "open")
	defer worker.Close(w)
	p.must(worker.Add(w, []worker.Tensor{{Elems: 8, Width: 4, WireType: 1, MemoryType: 1}}, []uint32{0}), "add")
	runtime.LockOSThread() // which has the text of its last failure
	defer runtime.UnlockOSThread()
	memory := make([]byte, 32)
	_, rc = p.start(worker.Op{Kind: uint8(chunk.OpPushPull), Src: pointer(memory), Dst: pointer(memory)}, nil)
	if text := fabric.LastError(); rc != -int(syscall.EINVAL) || !strings.Contains(text, "in mode stream: push its rows, then pull") {
		t.Errorf("%d %q", rc, text)
	}
}

func TestRowsGoOnOverAnotherQueuePair(t *testing.T) {
	b := &table{rows: 3000, width: 16, wire: chunk.F32, memory: chunk.F32}
	p := newRowsPeer(t, 5, 2, 8, b)
	for step := range 6 {
		ids := make([]int64, 0, b.rows)
		for i := step; i < b.rows; i += 2 {
			ids = append(ids, int64(i))
		}
		src, dst := make([]byte, len(ids)*b.rowBytes()), make([]byte, b.rows*b.rowBytes())
		p.random(src, b.memory)
		union := make([]int64, b.rows)
		nunion := []uint64{0}
		want := p.begin(b, ids)
		_, rc := p.start(worker.Op{
			Kind: uint8(chunk.OpPushPull), Src: pointer(src), Dst: pointer(dst), Union: pointer(union), NUnion: pointer(nunion),
		}, ids)
		p.must(rc, "submit")
		l := p.lanes[0]
		if step%2 == 0 { // else the first messages are lost
			for range 1 + step {
				if p.gather(); !p.respond(0) {
					t.Fatal("nothing came over lane 0")
				}
			}
			p.gather()
		}
		p.must(worker.Claim(p.w), "claim")
		received, rc := worker.Detach(p.w, 0)
		worker.Release(p.w)
		p.must(rc, "detach")
		p.attach(0, l.came)
		t.Logf("step %d: %d messages came, %d answers, %d are held", step, l.came, received, len(l.held))
		p.serve()
		p.checkCame(b, ids, src)
		if !slices.Equal(union[:nunion[0]], want) {
			t.Fatalf("step %d: the union differs", step)
		}
		runtime.KeepAlive(dst)
	}
}

func TestOperationsOnRowsAreRefusedByValue(t *testing.T) {
	runtime.LockOSThread() // which has the text of its last failure
	defer runtime.UnlockOSThread()
	b := &table{rows: 10, width: 4, wire: chunk.F32, memory: chunk.F32}
	p := newRowsPeer(t, 1, 1, 4, b)
	if rc := worker.Add(p.w, []worker.Tensor{{Elems: 8, WireType: 1, MemoryType: 1}}, []uint32{0}); rc < 0 {
		t.Fatal(rc)
	}
	memory := make([]byte, b.rows*b.rowBytes())
	for _, tc := range []struct {
		kind   chunk.Op
		tensor uint32
		ids    []int64
		what   string
	}{
		{chunk.OpPush, 0, []int64{3, 10}, "tensor 0: id 1 is 10: use rows from 0 to 9"},
		{chunk.OpPull, 0, []int64{3, -1}, "tensor 0: id 1 is -1: use rows from 0 to 9"},
		{chunk.OpPushPull, 0, []int64{3, 3}, "tensor 0: id 1 is 3, not above 3: sort ids, and sum the rows of repeated ones"},
		{chunk.OpPush, 0, []int64{3, 2}, "tensor 0: id 1 is 2, not above 3"},
		{chunk.OpPull, 0, make([]int64, 11), "tensor 0 has 10 rows, and 11 ids are given: pull them by several operations"},
		{chunk.OpPush, 0, make([]int64, 11), "11 ids are given: sum the rows of repeated ones"},
		{chunk.OpPushPull, 0, []int64{3, 5}, "tensor 0: its 2 rows lie in the destination: give them memory of their own"},
		{chunk.OpPush, 1, []int64{0}, "ids for dense tensor 1: give none"},
		{chunk.OpBroadcast, 0, []int64{0}, "ids for a broadcast of tensor 0: give none"},
	} {
		op := worker.Op{Kind: uint8(tc.kind), Tensor: tc.tensor, Src: pointer(memory), Dst: pointer(memory)}
		if _, rc := p.start(op, tc.ids); rc != -int(syscall.EINVAL) {
			t.Errorf("%v of %v: %d", tc.kind, tc.ids, rc)
		}
		if text := fabric.LastError(); !strings.Contains(text, tc.what) {
			t.Errorf("%v of %v: %q, expected %q", tc.kind, tc.ids, text, tc.what)
		}
	}
	op := worker.Op{Kind: uint8(chunk.OpPush), Src: pointer(memory), NIDs: 2}
	if _, rc := p.start(op, nil); rc != -int(syscall.EINVAL) || !strings.Contains(fabric.LastError(), "tensor 0: 2 ids at NULL") {
		t.Errorf("2 ids at NULL: %d: %q", rc, fabric.LastError())
	}
	if worker.Active(p.w) != 0 {
		t.Error("an operation has begun")
	}
	rc := worker.Add(p.w, []worker.Tensor{{Elems: 8, Width: 4, WireType: 1, MemoryType: 1}}, []uint32{0})
	if rc != -int(syscall.EINVAL) ||
		!strings.Contains(fabric.LastError(), "2 sparse tensors: use at most 1 in a session, or one for several tables") {
		t.Errorf("%d: %q", rc, fabric.LastError())
	}
}

func TestAPullOfNoRowsIsDoneAtOnce(t *testing.T) {
	p := newRowsPeer(t, 1, 1, 4, &table{rows: 10, width: 4, wire: chunk.F32, memory: chunk.F32})
	handle, rc := p.start(worker.Op{Kind: uint8(chunk.OpPull)}, make([]int64, 0, 1))
	p.must(rc, "submit")
	p.must(worker.Wait(p.w, handle, 0), "wait")
}

func TestSparseTensorsAreBroadcastAndPulledWholeByChunk(t *testing.T) {
	b := &table{rows: 1000, width: 5, wire: chunk.F32, memory: chunk.F32}
	p := newRowsPeer(t, 2, 2, 8, b)
	for _, kind := range []chunk.Op{chunk.OpBroadcast, chunk.OpPull} {
		buf := make([]byte, b.rows*b.rowBytes())
		if p.random(b.values, b.wire); kind == chunk.OpBroadcast {
			p.random(buf, b.wire)
		}
		_, rc := p.start(worker.Op{Kind: uint8(kind), Src: pointer(buf), Dst: pointer(buf)}, nil)
		p.must(rc, "submit")
		for worker.Active(p.w) > 0 {
			p.whole = p.whole[:0]
			if p.gather(); len(p.whole) == 0 {
				t.Fatalf("%v: nothing comes", kind)
			}
			for lane := range p.lanes {
				for _, m := range p.whole {
					each := chunk.MinChunkBytes / b.rowBytes()
					if m.lane != lane {
						continue
					}
					rows := b.global[lane][int(m.index-b.first[lane])*each:]
					rows = rows[:min(each, len(rows))]
					p.answer(lane, m, b.values[rows[0]*b.rowBytes():][:len(rows)*b.rowBytes()])
				}
			}
		}
		if !bytes.Equal(buf, b.values) {
			t.Errorf("%v: the values differ", kind)
		}
	}
}

func TestAnAnswerToRowsThatIsWrongFailsTheWorkerByName(t *testing.T) {
	const each = 4 * 4
	block := func(to, count uint32, ids ...uint32) []byte {
		out := make([]byte, rowsHeader)
		if count > 0 {
			out = make([]byte, rowsHeader+(chunk.MinChunkBytes-rowsHeader)/(4+each)*4+int(count)*each)
		}
		binary.LittleEndian.PutUint32(out[4:], to)
		binary.LittleEndian.PutUint32(out[8:], count)
		out[12] = rowsBlock
		for i, id := range ids {
			binary.LittleEndian.PutUint32(out[rowsHeader+4*i:], id)
		}
		return out
	}
	for _, tc := range []struct {
		kind    chunk.Op
		payload []byte
		what    string
	}{
		{chunk.OpPush, make([]byte, 4), "a gradient's answer is empty"},
		{chunk.OpPull, make([]byte, each), "its length is wrong"},
		{chunk.OpPushPull, make([]byte, 15), "shorter than a header"},
		{chunk.OpPushPull, block(11, 0), "its header is wrong"},
		{chunk.OpPushPull, block(10, 2, 1, 1), "its rows are not ascending"},
		{chunk.OpPushPull, block(9, 1, 9), "its rows are not ascending"},
		{chunk.OpPushPull, block(10, 1, 1<<31), "its rows are not ascending"},
		{chunk.OpPushPull, block(10, 1, 1)[:40], "its header is wrong"},
		{chunk.OpPushPull, append(make([]byte, 12), rowsPull, 0, 0, 0), "its header is wrong"},
	} {
		b := &table{rows: 10, width: 4, wire: chunk.F32, memory: chunk.F32}
		p := newRowsPeer(t, 1, 1, 8, b)
		rows, memory := make([]byte, 2*b.rowBytes()), make([]byte, b.rows*b.rowBytes())
		ids := []int64{1, 2}
		if tc.kind != chunk.OpPull {
			p.begin(b, ids)
		}
		_, rc := p.start(worker.Op{Kind: uint8(tc.kind), Src: pointer(rows), Dst: pointer(memory)}, ids)
		p.must(rc, "submit")
		p.gather()
		l := p.lanes[0]
		m := l.held[min(1, len(l.held)-1)] // the first fetch, if there is one
		l.fails = true
		p.answer(0, m, tc.payload)
		rc, text := worker.Failure(p.w)
		if rc != worker.ErrProtocol || !strings.Contains(text, tc.what) || !strings.Contains(text, "lane 0: rows of tensor 0 ") {
			t.Errorf("%v: %d %q, expected a protocol error with %q", tc.kind, rc, text, tc.what)
		}
		runtime.KeepAlive(rows)
		runtime.KeepAlive(memory)
		runtime.KeepAlive(ids)
	}
}

func TestRowsThatResultsWouldOverwriteAreRefused(t *testing.T) {
	runtime.LockOSThread() // which has the text of its last failure
	defer runtime.UnlockOSThread()
	const each = 4 * 4
	memory := make([]byte, 12*each)
	for _, tc := range []struct {
		what     string
		src, dst int // rows from the start of memory
		ids      []int64
		refused  bool
	}{
		{"at the start of the destination", 0, 0, []int64{0, 1}, true},
		{"within it", 5, 0, []int64{3}, true},
		{"partly before it", 0, 1, []int64{3, 4}, true},
		{"partly behind it", 9, 0, []int64{3, 4}, true},
		{"a whole table beside its place", 1, 0, nil, true},
		{"none of them", 5, 0, make([]int64, 0, 1), false},
		{"before it", 0, 2, []int64{3, 4}, false},
		{"behind it", 10, 0, []int64{3, 4}, false},
		{"a whole table in its place", 0, 0, nil, false},
		{"all rows in their places", 0, 0, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, false},
	} {
		b := &table{rows: 10, width: 4, wire: chunk.F32, memory: chunk.F32}
		p := newRowsPeer(t, 1, 1, 8, b)
		p.begin(b, tc.ids)
		op := worker.Op{Kind: uint8(chunk.OpPushPull), Src: pointer(memory[tc.src*each:]), Dst: pointer(memory[tc.dst*each:])}
		_, rc := p.start(op, tc.ids)
		if tc.refused {
			if text := fabric.LastError(); rc != -int(syscall.EINVAL) || !strings.Contains(text, "lie in the destination") {
				t.Errorf("%s: %d %q", tc.what, rc, text)
			}
			continue
		}
		p.must(rc, tc.what)
		p.serve()
	}
}
