package timeline

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/service/api"
)

// slice is an event of the trace format that Perfetto and chrome://tracing read.
type slice struct {
	Name string         `json:"name"`
	Ph   string         `json:"ph"`
	TS   float64        `json:"ts"` // µs
	Dur  float64        `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

const (
	lanesPID   = 1
	workersPID = 2
)

// WriteJSON writes the timeline for Perfetto: a track for each lane with its folds and answers, and one for each worker with its
// steps.
func (t *Timeline) WriteJSON(out io.Writer) error {
	slices := []slice{named("process_name", lanesPID, 0, "aggregator"), named("process_name", workersPID, 0, "workers")}
	start := int64(0) // the first time there is
	for _, lane := range t.Trace.Lanes {
		if len(lane.Events) > 0 && (start == 0 || lane.Events[0].At < start) {
			start = lane.Events[0].At
		}
	}
	us := func(ns int64) float64 { return float64(ns-start) / 1e3 }
	for i, lane := range t.Trace.Lanes {
		slices = append(slices, named("thread_name", lanesPID, i, fmt.Sprintf("lane %d", i)))
		for _, e := range lane.Events {
			args := map[string]any{"tensor": t.tensor(lane, e.Chunk), "chunk": e.Chunk}
			if e.Worker >= 0 {
				args["worker"] = e.Worker
			}
			if e.Bytes > 0 {
				args["bytes"], args["codec"] = e.Bytes, codec.ID(e.Codec).String()
			}
			switch e.Kind {
			case api.TraceEvent_FOLD, api.TraceEvent_UPDATE:
				slices = append(slices,
					slice{"fold", "X", us(e.At), float64(e.Took) / 1e3, lanesPID, i, args},
					slice{"answer", "X", us(e.At + int64(e.Took)), float64(e.Posted) / 1e3, lanesPID, i, args})
			case api.TraceEvent_ARRIVE:
				slices = append(slices, slice{"arrives", "i", us(e.At), 0, lanesPID, i, args})
			case api.TraceEvent_PULL:
				slices = append(slices, slice{"pull", "i", us(e.At), 0, lanesPID, i, args})
			}
		}
	}
	for w := range int(t.Trace.Workers) {
		slices = append(slices, named("thread_name", workersPID, w, fmt.Sprintf("worker %d", w)))
	}
	waits, applies := "waits for others", "aggregation"
	if t.Trace.Mode == "stream" {
		waits, applies = "aggregation", "held by the policy"
	}
	for i := range t.Steps {
		s := &t.Steps[i]
		part := func(name string, from, to int64, args map[string]any) {
			if to > from {
				slices = append(slices, slice{name, "X", us(from), float64(to-from) / 1e3, workersPID, s.Worker, args})
			}
		}
		var args map[string]any
		if total := s.Late.Total(); total > 0 {
			us := func(d time.Duration) float64 { return float64(d) / 1e3 }
			args = map[string]any{"late_us": us(total), "by_compute_us": us(s.Late.Compute), "by_wire_us": us(s.Late.Wire),
				"by_aggregation_us": us(s.Late.Aggregation)}
		}
		part("step", s.Begun, s.Answered, args)
		part("compute", s.Begun, s.First, nil)
		part("gradients", s.First, s.Last, nil)
		part(waits, s.Last, s.Applied, nil)
		part(applies, max(s.Applied, s.Last), s.Answered, nil)
	}
	return json.NewEncoder(out).Encode(map[string]any{"displayTimeUnit": "ms", "traceEvents": slices})
}

func named(what string, pid, tid int, name string) slice {
	return slice{Name: what, Ph: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}}
}

func (t *Timeline) tensor(lane *api.LaneTrace, chunk uint32) string {
	if int(chunk) < len(lane.Tensors) && int(lane.Tensors[chunk]) < len(t.Trace.Tensors) {
		return t.Trace.Tensors[lane.Tensors[chunk]]
	}
	return ""
}
