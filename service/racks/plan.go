package racks

import "fmt"

// Holder is the aggregator that serves a rack.
type Holder struct {
	Aggregator string `json:"aggregator,omitempty"` // identifies the process; empty: none serves the rack
	URL        string `json:"url,omitempty"`
	Token      int64  `json:"token,omitempty"` // revision of its claim: a later claim has a larger one
	// Out says that jobs begin without the rack.
	Out bool `json:"out,omitempty"`
}

// Plan is who serves each rack, as it was decided for all aggregators.
type Plan struct {
	Epoch   int64 // revision by which it was decided; 0: nothing is decided yet
	Holders []Holder
}

// Served counts the racks that have an aggregator.
func (p *Plan) Served() (n int) {
	for _, h := range p.Holders {
		if h.Aggregator != "" {
			n++
		}
	}
	return n
}

// Standing is what an aggregator knows of its membership.
type Standing struct {
	Plan Plan
	// Refusal says why the aggregator may not begin jobs now; nil: it may. Jobs that run go on.
	Refusal error
	// Fenced says that another aggregator serves this one's rack: its jobs must end. Refusal names the other.
	Fenced bool
	Store  StoreStatus
}

// StoreStatus is how an aggregator gets on with what keeps the membership.
type StoreStatus struct {
	Reachable bool
	Seconds   float64 // since its lease was renewed last; negative: it never was
	Leader    string  // rack whose aggregator decides
}

// Members tells which aggregator serves which rack, where that is not fixed by the cluster's file.
type Members interface {
	// ID identifies this process.
	ID() string
	// Standing returns what is known now.
	Standing() Standing
	// Changed returns a channel that is closed when the standing changes.
	Changed() <-chan struct{}
}

// The choices of what happens to jobs when the aggregator of a rack is lost. Those that run end in all racks; these say how a job
// of that name may begin again.
const (
	LossWait = "wait"  // when the rack is served again
	LossFail = "fail"  // not before that: joining is refused at once
	LossGoOn = "go-on" // without the rack
)

// Losses are the choices.
var Losses = []string{LossWait, LossFail, LossGoOn}

func (h Holder) String() string {
	if h.Aggregator == "" {
		return "nobody"
	}
	return fmt.Sprintf("the aggregator at %s (token %d)", h.URL, h.Token)
}
