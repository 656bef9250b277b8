// Package timeline makes a timeline of what an aggregator's trace tells: the workers' steps, and where their time went. All times
// are of the aggregator's clock, so nothing depends on how well the workers' clocks agree.
package timeline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rackweave/rackweave/service/api"
)

// Step is one step of a worker. Begun, First, Last and Answered are in order.
type Step struct {
	Worker   int
	Epoch    uint8
	Begun    int64 // ns: the parameters that it needs were on their way
	First    int64 // its first gradient came
	Last     int64 // its last gradient came
	Applied  int64 // all that it waits for was there: the other workers' gradients, or in mode stream its own updates
	Answered int64 // it may go on
	Late     Late  // where another worker's last gradient came before
}

// Late is by how much a worker's gradients came after those of the step's first worker, and where that time went.
type Late struct {
	Compute     time.Duration `json:"compute_ns"`     // between parameters and gradients
	Wire        time.Duration `json:"wire_ns"`        // between the first gradient and the last
	Aggregation time.Duration `json:"aggregation_ns"` // its parameters left later
}

// Total is all of it.
func (l Late) Total() time.Duration { return l.Compute + l.Wire + l.Aggregation }

// Timeline is a trace, in steps.
type Timeline struct {
	Trace *api.TraceResponse
	Steps []Step // by worker, then in their order
}

// happening is an event with its lane.
type happening struct {
	*api.TraceEvent
	lane int
}

func (h *happening) end() int64 { return h.At + int64(h.Took) + int64(h.Posted) }

// New works out the steps. Steps that the trace has only in part are left out.
func New(trace *api.TraceResponse) *Timeline {
	t := &Timeline{Trace: trace}
	var all []happening
	for i, lane := range trace.Lanes {
		for _, e := range lane.Events {
			all = append(all, happening{e, i})
		}
	}
	slices.SortStableFunc(all, func(a, b happening) int { return cmp.Compare(a.At, b.At) })
	for w := range int(trace.Workers) {
		if trace.Mode == "stream" {
			t.Steps = append(t.Steps, streamSteps(w, all)...)
		} else {
			t.Steps = append(t.Steps, synchronousSteps(w, all)...)
		}
	}
	if trace.Mode != "stream" {
		attribute(t.Steps)
	}
	return t
}

// streamSteps follows a worker from one release to the next.
func streamSteps(w int, all []happening) (steps []Step) {
	now, open := Step{Worker: w}, false
	for i := range all {
		e := &all[i]
		if int(e.Worker) != w {
			continue
		}
		switch e.Kind {
		case api.TraceEvent_GO:
			if open && now.First > 0 {
				now.Answered = e.At
				steps = append(steps, now)
			}
			if !open || now.First > 0 {
				now, open = Step{Worker: w, Epoch: uint8(e.Epoch)}, true
			}
			now.Begun = e.At // the last lane's
		case api.TraceEvent_PULL:
			if now.First == 0 {
				now.Begun = e.end()
			}
		case api.TraceEvent_ARRIVE:
			if now.First == 0 {
				now.First = e.At
			}
			now.Last = e.At
		case api.TraceEvent_UPDATE:
			now.Applied = e.end()
		}
	}
	return steps
}

// synchronousSteps divides a worker's gradients by their epochs. The last step may be incomplete, and is left out.
func synchronousSteps(w int, all []happening) (steps []Step) {
	answered := int64(0) // the last answer so far
	for i := range all {
		e := &all[i]
		switch {
		case e.Kind == api.TraceEvent_FOLD:
			answered = e.end()
			for k := range steps[max(len(steps)-2, 0):] { // a worker may begin a step with some tensors before others are answered
				if s := &steps[len(steps)-1-k]; s.Epoch == uint8(e.Epoch) {
					s.Applied, s.Answered = e.At, answered
				}
			}
		case e.Kind == api.TraceEvent_PULL && int(e.Worker) == w:
			answered = e.end()
		case e.Kind == api.TraceEvent_ARRIVE && int(e.Worker) == w:
			if n := len(steps); n == 0 || uint8(e.Epoch) == (steps[n-1].Epoch+1)&127 {
				steps = append(steps, Step{Worker: w, Epoch: uint8(e.Epoch), Begun: min(answered, e.At), First: e.At})
			}
			steps[len(steps)-1].Last = e.At
		}
	}
	incomplete := func(s Step) bool { return s.Begun == 0 || s.Answered < s.Last }
	return slices.DeleteFunc(steps[:max(len(steps)-1, 0)], incomplete)
}

// attribute works out who was late in each step, and why. A step of all workers ends with the same fold.
func attribute(steps []Step) {
	byFold := make(map[int64][]*Step)
	for i := range steps {
		byFold[steps[i].Applied] = append(byFold[steps[i].Applied], &steps[i])
	}
	for _, all := range byFold {
		first := slices.MinFunc(all, func(a, b *Step) int { return cmp.Compare(a.Last, b.Last) })
		for _, s := range all {
			s.Late = Late{
				Compute:     time.Duration((s.First - s.Begun) - (first.First - first.Begun)),
				Wire:        time.Duration((s.Last - s.First) - (first.Last - first.First)),
				Aggregation: time.Duration(s.Begun - first.Begun),
			}
		}
	}
}

// Share divides a worker's time, over all its steps.
type Share struct {
	Worker      int           `json:"worker"`
	Steps       int           `json:"steps"`
	Compute     time.Duration `json:"compute_ns"`
	Wire        time.Duration `json:"wire_ns"`
	Wait        time.Duration `json:"wait_ns"`
	Aggregation time.Duration `json:"aggregation_ns"`
	Late        Late          `json:"late"` // in a synchronous job
}

// Shares sums the steps up by worker. A worker waits for others from its last gradient until what it waits for is there. One that
// was held to the end of the trace, and made no step before, has waited for that long.
func (t *Timeline) Shares() []Share {
	all := make([]Share, t.Trace.Workers)
	for i := range all {
		all[i].Worker = i
	}
	for i := range t.Steps {
		s := &t.Steps[i]
		w := &all[s.Worker]
		w.Steps++
		w.Compute += time.Duration(s.First - s.Begun)
		w.Wire += time.Duration(s.Last - s.First)
		here, there := time.Duration(max(s.Applied-s.Last, 0)), time.Duration(s.Answered-max(s.Applied, s.Last))
		if t.Trace.Mode == "stream" { // its own updates, then the policy's wait
			here, there = there, here
		}
		w.Wait += here
		w.Aggregation += there
		w.Late.Compute += s.Late.Compute
		w.Late.Wire += s.Late.Wire
		w.Late.Aggregation += s.Late.Aggregation
	}
	for i := range min(len(all), len(t.Trace.HeldNs)) {
		if w := &all[i]; w.Steps == 0 {
			w.Wait = time.Duration(t.Trace.HeldNs[i])
		}
	}
	return all
}

// WriteTable prints where each worker's time went, per step.
func (t *Timeline) WriteTable(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "worker\tsteps\tms a step\tcompute\twire\twait\taggregation\t")
	synchronous := t.Trace.Mode != "stream"
	if synchronous {
		fmt.Fprint(w, "late\tby compute\tby wire\tby aggregation\t")
	}
	fmt.Fprintln(w)
	for _, s := range t.Shares() {
		ms := func(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()*1e3/float64(max(s.Steps, 1))) }
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t", s.Worker, s.Steps, ms(s.Compute+s.Wire+s.Wait+s.Aggregation), ms(s.Compute),
			ms(s.Wire), ms(s.Wait), ms(s.Aggregation))
		if synchronous {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t", ms(s.Late.Total()), ms(s.Late.Compute), ms(s.Late.Wire), ms(s.Late.Aggregation))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}
