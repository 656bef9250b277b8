package timeline

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/api"
)

const ms = int64(time.Millisecond)

// exchange is a step of two workers with two chunks each: the first gradients come at these times, the second ones a gap later.
func exchange(epoch uint32, at, gap [2]int64) (events []*api.TraceEvent) {
	last := int64(0)
	for chunk := range uint32(2) {
		for w := range int32(2) {
			t := at[w] + int64(chunk)*gap[w]
			last = max(last, t)
			events = append(events, &api.TraceEvent{Kind: api.TraceEvent_ARRIVE, At: t, Worker: w, Chunk: chunk, Epoch: epoch})
		}
		events = append(events,
			&api.TraceEvent{Kind: api.TraceEvent_FOLD, At: last + ms, Took: uint32(ms), Worker: -1, Chunk: chunk, Epoch: epoch})
	}
	return events
}

func TestLatenessIsDividedByWhereItArose(t *testing.T) {
	trace := &api.TraceResponse{Mode: "eager", Workers: 2, Tensors: []string{"fc"}, Lanes: []*api.LaneTrace{{Tensors: []uint32{0, 0}}}}
	lane := trace.Lanes[0]
	// Worker 1 computes 5 ms longer, and its gradients take 2 ms longer to come.
	at := int64(100 * ms)
	for epoch := uint32(126); epoch < 131; epoch++ {
		lane.Events = append(lane.Events, exchange(epoch%128, [2]int64{at + 10*ms, at + 15*ms}, [2]int64{ms, 3 * ms})...)
		at += 20 * ms
	}
	tl := New(trace)
	if len(tl.Steps) != 6 { // the first began before the trace, and the last may not be over
		t.Fatalf("%d steps: %+v", len(tl.Steps), tl.Steps)
	}
	for _, s := range tl.Steps {
		want := Late{}
		if s.Worker == 1 {
			want = Late{Compute: 5 * time.Millisecond, Wire: 2 * time.Millisecond}
		}
		if s.Late != want || s.Begun != s.Answered-20*ms {
			t.Errorf("%+v, want %+v", s, want)
		}
	}
	shares := tl.Shares()
	if w := shares[0]; w.Steps != 3 || w.Wait != 3*8*time.Millisecond || w.Aggregation != 3*time.Millisecond {
		t.Errorf("worker 0: %+v", w)
	}
	var table, out bytes.Buffer
	if tl.WriteTable(&table); !strings.Contains(table.String(), "by wire") {
		t.Error(table.String())
	}
	var file struct {
		TraceEvents []slice `json:"traceEvents"`
	}
	if err := tl.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &file); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, s := range file.TraceEvents {
		names[s.Name]++
	}
	for name, want := range map[string]int{"fold": 10, "answer": 10, "arrives": 20, "step": 6, "compute": 6, "waits for others": 6} {
		if names[name] != want {
			t.Errorf("%d of %q, want %d", names[name], name, want)
		}
	}
}

func TestStreamStepsGoFromReleaseToRelease(t *testing.T) {
	lane := &api.LaneTrace{Tensors: []uint32{0}}
	put := func(kind api.TraceEvent_Kind, at int64) {
		lane.Events = append(lane.Events, &api.TraceEvent{Kind: kind, At: at * ms, Took: uint32(ms), Worker: 0})
	}
	put(api.TraceEvent_ARRIVE, 5) // of a step that began before
	for at := int64(10); at < 100; at += 30 {
		put(api.TraceEvent_GO, at)
		put(api.TraceEvent_PULL, at+1)
		put(api.TraceEvent_ARRIVE, at+12)
		put(api.TraceEvent_UPDATE, at+13)
		put(api.TraceEvent_END, at+15)
	}
	tl := New(&api.TraceResponse{Mode: "stream", Workers: 1, Lanes: []*api.LaneTrace{lane}})
	if len(tl.Steps) != 2 {
		t.Fatalf("%+v", tl.Steps)
	}
	want := Share{Steps: 2, Compute: 2 * 10 * time.Millisecond, Aggregation: 2 * 2 * time.Millisecond, Wait: 2 * 16 * time.Millisecond}
	if got := tl.Shares()[0]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAWorkerThatIsHeldAllTheTimeWaits(t *testing.T) {
	tl := New(&api.TraceResponse{Mode: "stream", Workers: 3, Lanes: []*api.LaneTrace{{}},
		HeldNs: []int64{40 * ms, 20 * ms, 0, 5 * ms}}) // more than there are workers
	for w, want := range []time.Duration{40 * time.Millisecond, 20 * time.Millisecond, 0} {
		if got := tl.Shares()[w]; got.Steps != 0 || got.Wait != want {
			t.Errorf("worker %d: %+v, want a wait of %v", w, got, want)
		}
	}
}

func TestEmptyTraceHasNoSteps(t *testing.T) {
	tl := New(&api.TraceResponse{Mode: "eager", Workers: 2, Lanes: []*api.LaneTrace{{}}})
	var out bytes.Buffer
	if err := tl.WriteJSON(&out); err != nil || len(tl.Steps) != 0 {
		t.Error(err, tl.Steps)
	}
}
