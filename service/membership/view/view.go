package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/service/racks"
)

// View is what is known of a cluster's keys. It is pure: events in, decisions out.
type View struct {
	Keys     Keys
	Declared string            // the cluster as this aggregator's file has it
	Claims   map[string]*Claim // by rack
	Foreign  map[string]error  // by key, values that this cluster's aggregators did not write
	Leader   *Claim            // nil: there is none
	Plan     *Decision         // nil: there is none

	cluster *racks.Cluster
	lost    map[string]time.Time // racks of the plan that nobody claims, and since when
	goOn    time.Duration        // how long such a rack may be, until jobs begin without it
}

// New returns a view without keys. A rack may have no aggregator for a time, goOnAfter, until jobs begin without it, where they go
// on.
func New(c *racks.Cluster, goOnAfter time.Duration) *View {
	v := &View{Keys: NewKeys(cmp.Or(c.Name, "default")), Declared: c.Declaration(), cluster: c, lost: map[string]time.Time{},
		goOn: goOnAfter}
	v.Clear()
	return v
}

// Clear forgets what was read, before all is read again. It keeps since when racks are lost.
func (v *View) Clear() {
	v.Claims, v.Foreign, v.Leader, v.Plan = map[string]*Claim{}, map[string]error{}, nil, nil
}

// Put takes note of a key's value, which was created and last written at these revisions.
func (v *View) Put(key string, value []byte, created, modified int64) {
	v.Drop(key)
	var err error
	switch name, isRack := strings.CutPrefix(key, v.Keys.racks()); {
	case isRack:
		var c *Claim
		if c, err = decodeClaim(v.cluster.Secret, key, value); err == nil {
			if v.Keys.Rack(c.Rack) != key {
				err = fmt.Errorf("%w: key %s holds a claim of rack %q", ErrRecord, name, c.Rack)
				break
			}
			c.Revision = created
			v.Claims[c.Rack] = c
		}
	case key == v.Keys.Leader():
		if v.Leader, err = decodeClaim(v.cluster.Secret, key, value); err == nil {
			v.Leader.Revision = created
		}
	case key == v.Keys.Plan():
		if v.Plan, err = decodeDecision(v.cluster.Secret, key, value); err == nil {
			v.Plan.Epoch = modified
		}
	}
	if err != nil {
		v.Foreign[key] = err
	}
}

// Drop takes note that a key is gone.
func (v *View) Drop(key string) {
	delete(v.Foreign, key)
	switch {
	case key == v.Keys.Leader():
		v.Leader = nil
	case key == v.Keys.Plan():
		v.Plan = nil
	default:
		maps.DeleteFunc(v.Claims, func(rack string, _ *Claim) bool { return v.Keys.Rack(rack) == key })
	}
}

// Current returns the plan if it is of the leader that there is; else nil: a new one is about to be written.
func (v *View) Current() *Decision {
	if v.Plan == nil || v.Leader == nil || v.Plan.Token != v.Leader.Revision {
		return nil
	}
	return v.Plan
}

// Decide returns the plan that the leader should write, and whether it differs from the one that is there.
func (v *View) Decide(now time.Time) (d *Decision, differs bool) {
	d = &Decision{Declared: v.Declared, Leader: v.Leader.Rack, Token: v.Leader.Revision}
	d.Holders = make([]racks.Holder, len(v.cluster.Racks))
	for i, r := range v.cluster.Racks {
		h := &d.Holders[i]
		if c := v.Claims[r.Name]; c != nil && c.Declared == v.Declared {
			*h = racks.Holder{Aggregator: c.Aggregator, URL: c.URL, Token: c.Revision}
			delete(v.lost, r.Name)
			continue
		}
		h.Token, h.Out = v.last(i), v.isOut(i, now)
	}
	p := v.Plan
	same := p != nil && p.Declared == d.Declared && p.Leader == d.Leader && p.Token == d.Token && slices.Equal(p.Holders, d.Holders)
	return d, !same
}

// last is the token of the last claim of a rack that the plan knows of; 0: it was never served.
func (v *View) last(rack int) int64 {
	if v.Plan == nil || len(v.Plan.Holders) != len(v.cluster.Racks) {
		return 0
	}
	return v.Plan.Holders[rack].Token
}

// isOut reports whether jobs may begin without a rack that nobody claims: it was served once, and has not been for a while.
func (v *View) isOut(rack int, now time.Time) bool {
	if v.cluster.Loss() != racks.LossGoOn || v.last(rack) == 0 {
		return false
	}
	name := v.cluster.Racks[rack].Name
	if _, is := v.lost[name]; !is {
		v.lost[name] = now
	}
	return v.Plan.Holders[rack].Out || now.Sub(v.lost[name]) >= v.goOn
}
