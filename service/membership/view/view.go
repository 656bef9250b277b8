package view

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/rackweave/rackweave/service/racks"
)

// View holds the known values of a cluster's keys. It is pure: events in, decisions out.
type View struct {
	Keys     Keys
	Declared string             // the cluster as this aggregator's file has it
	Claims   map[string]*Claim  // by rack
	Foreign  map[string]Foreign // by key, values that this cluster's aggregators did not write
	Leader   *Claim             // or nil
	Plan     *Decision          // or nil

	cluster *racks.Cluster
	racks   map[string]string    // by key
	lost    map[string]time.Time // the racks of the plan without a claim, and the beginning of that
	goOn    time.Duration        // the time for which a rack may have no claim until jobs begin without it
}

// Foreign is a value that this cluster's aggregators did not write.
type Foreign struct {
	Err      error // the reason
	Modified int64 // the revision that wrote it
	Lease    int64 // or 0
}

// New returns a view without keys. A rack may have no aggregator for a time, goOnAfter, until jobs begin without it, where they go
// on.
func New(c *racks.Cluster, goOnAfter time.Duration) *View {
	prefix := "/rackweave/" + url.PathEscape(cmp.Or(c.Name, "default")) + "/"
	v := &View{Keys: Keys{prefix, prefix + "leader", prefix + "plan"}, Declared: c.Declaration(), cluster: c,
		racks: map[string]string{}, lost: map[string]time.Time{}, goOn: goOnAfter}
	for _, r := range c.Racks {
		v.racks[v.Keys.Rack(r.Name)] = r.Name
	}
	v.Clear()
	return v
}

// Clear removes all values, before all keys are read again. It keeps the times at which racks were lost.
func (v *View) Clear() {
	v.Claims, v.Foreign, v.Leader, v.Plan = map[string]*Claim{}, map[string]Foreign{}, nil, nil
}

// Put records a key's value, with the revisions that created and last wrote it and the lease that it is under.
func (v *View) Put(key string, value []byte, created, modified, lease int64) {
	v.Drop(key)
	var err error
	read := func(into interface{ check() error }) bool {
		err = decode(v.cluster.Secret, key, value, into)
		return err == nil
	}
	claim := &Claim{Revision: created, Lease: lease}
	switch rack, isRack := v.racks[key]; {
	case isRack && read(claim):
		if claim.Rack == rack {
			v.Claims[rack] = claim
		} else {
			err = fmt.Errorf("%w: rack %s's key holds a claim of rack %q", ErrRecord, rack, claim.Rack)
		}
	case key == v.Keys.Leader && read(claim):
		v.Leader = claim
	case key == v.Keys.Plan:
		if plan := (&Decision{Epoch: modified}); read(plan) {
			v.Plan = plan
		}
	}
	if err != nil {
		v.Foreign[key] = Foreign{Err: err, Modified: modified, Lease: lease}
	}
}

// Read lists the keys that the view reads. Strangers may write any number of others.
func (v *View) Read() []string {
	return append(slices.Collect(maps.Keys(v.racks)), v.Keys.Leader, v.Keys.Plan)
}

// Drop removes a key that is gone.
func (v *View) Drop(key string) {
	delete(v.Foreign, key)
	delete(v.Claims, v.racks[key])
	switch key {
	case v.Keys.Leader:
		v.Leader = nil
	case v.Keys.Plan:
		v.Plan = nil
	}
}

// Current returns the plan if the present leader has written it, or nil if that is still to happen.
func (v *View) Current() *Decision {
	if v.Plan == nil || v.Leader == nil || v.Plan.Token != v.Leader.Revision {
		return nil
	}
	return v.Plan
}

// Decide returns the plan that the leader should write, and whether it differs from the present plan.
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

// last returns the token of the last claim of a rack in the plan, or 0 if the rack was never served.
func (v *View) last(rack int) int64 {
	if v.Plan == nil || len(v.Plan.Holders) != len(v.cluster.Racks) {
		return 0
	}
	return v.Plan.Holders[rack].Token
}

// isOut reports whether jobs may begin without an unclaimed rack, because it was served once and has not been for a while.
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
