package racks

import "fmt"

// Holder is the aggregator that serves a rack.
type Holder struct {
	Aggregator string `json:"aggregator,omitempty"` // identifies the process. If empty, no aggregator serves the rack.
	URL        string `json:"url,omitempty"`
	Token      int64  `json:"token,omitempty"` // revision of its claim: a later claim has a larger one
	// Out is set if jobs begin without the rack.
	Out bool `json:"out,omitempty"`
}

// Plan holds the aggregator of each rack, as the leader has decided for all.
type Plan struct {
	Epoch   int64 // revision that decided it. If 0, nothing is decided yet.
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

// Standing is the state of an aggregator's membership.
type Standing struct {
	Plan Plan
	// Refusal is the reason for which the aggregator may not begin jobs now, or nil. Jobs that run go on.
	Refusal error
	// Fenced is set if another aggregator serves this one's rack, so that its jobs must end. Refusal names the other.
	Fenced bool
	Store  StoreStatus
}

// StoreStatus is the state of an aggregator's access to etcd.
type StoreStatus struct {
	Reachable bool
	Seconds   float64 // since its lease was renewed last. If negative, it never was.
	Leader    string  // rack whose aggregator decides
}

// Members knows the aggregators of the racks, if the cluster's file does not fix them.
type Members interface {
	// ID identifies this process.
	ID() string
	// Standing returns what is known now.
	Standing() Standing
	// Changed returns a channel that is closed when the standing changes.
	Changed() <-chan struct{}
}

// These are the choices for jobs when the aggregator of a rack is lost. Jobs that run end in all racks, and a job of that name
// begins again:
const (
	LossWait = "wait"  // when the rack is served again
	LossGoOn = "go-on" // without the rack
)

// Losses lists the choices.
var Losses = []string{LossWait, LossGoOn}

func (h Holder) String() string {
	if h.Aggregator == "" {
		return "no aggregator"
	}
	return fmt.Sprintf("the aggregator at %s (token %d)", h.URL, h.Token)
}
