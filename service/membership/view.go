package membership

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/service/racks"
)

// keys are where a cluster's membership is kept.
type keys struct{ prefix string }

func newKeys(cluster string) keys      { return keys{"/rackweave/" + url.PathEscape(cluster) + "/"} }
func (k keys) leader() string          { return k.prefix + "leader" }
func (k keys) plan() string            { return k.prefix + "plan" }
func (k keys) rack(name string) string { return k.prefix + "racks/" + url.PathEscape(name) }

// view is what is known of a cluster's keys. It is pure: events in, decisions out.
type view struct {
	keys
	cluster  *racks.Cluster
	declared string

	claims  map[string]*claim // by rack
	foreign map[string]error  // by key, values that this cluster's aggregators did not write
	leader  *claim
	plan    *decision
	lost    map[string]time.Time // racks of the plan that nobody claims, and since when
	goOn    time.Duration        // how long such a rack may be, until jobs begin without it
}

func newView(c *racks.Cluster) *view {
	v := &view{keys: newKeys(cmp.Or(c.Name, "default")), cluster: c, declared: c.Declaration()}
	v.clear()
	return v
}

// clear forgets what was read, before all is read again.
func (v *view) clear() {
	v.claims, v.foreign, v.leader, v.plan = map[string]*claim{}, map[string]error{}, nil, nil
	if v.lost == nil {
		v.lost = map[string]time.Time{}
	}
}

// put takes note of a key's value, drop that a key is gone.
func (v *view) put(key string, value []byte, created, modified int64) {
	v.drop(key)
	var err error
	switch name, isRack := strings.CutPrefix(key, v.prefix+"racks/"); {
	case isRack:
		var c *claim
		if c, err = decodeClaim(v.cluster.Secret, key, value); err == nil {
			if v.rack(c.Rack) != key {
				err = fmt.Errorf("%w: key %s holds a claim of rack %q", ErrRecord, name, c.Rack)
				break
			}
			c.token = created
			v.claims[c.Rack] = c
		}
	case key == v.keys.leader():
		if v.leader, err = decodeClaim(v.cluster.Secret, key, value); err == nil {
			v.leader.token = created
		}
	case key == v.keys.plan():
		if v.plan, err = decodeDecision(v.cluster.Secret, key, value); err == nil {
			v.plan.epoch = modified
		}
	}
	if err != nil {
		v.foreign[key] = err
	}
}

func (v *view) drop(key string) {
	delete(v.foreign, key)
	switch {
	case key == v.keys.leader():
		v.leader = nil
	case key == v.keys.plan():
		v.plan = nil
	default:
		maps.DeleteFunc(v.claims, func(rack string, _ *claim) bool { return v.rack(rack) == key })
	}
}

// current returns the plan if it is of the leader that there is; else nil: a new one is about to be written.
func (v *view) current() *decision {
	if v.plan == nil || v.leader == nil || v.plan.Token != v.leader.token {
		return nil
	}
	return v.plan
}

// decide returns the plan that the leader should write, and whether it differs from the one that is there.
func (v *view) decide(now time.Time) (d *decision, differs bool) {
	d = &decision{Declared: v.declared, Leader: v.leader.Rack, Token: v.leader.token}
	d.Holders = make([]racks.Holder, len(v.cluster.Racks))
	for i, r := range v.cluster.Racks {
		h := &d.Holders[i]
		if c := v.claims[r.Name]; c != nil && c.Declared == v.declared {
			*h = racks.Holder{Aggregator: c.Aggregator, URL: c.URL, Token: c.token}
			delete(v.lost, r.Name)
			continue
		}
		h.Token, h.Out = v.last(i), v.isOut(i, now)
	}
	p := v.plan
	same := p != nil && p.Declared == d.Declared && p.Leader == d.Leader && p.Token == d.Token && slices.Equal(p.Holders, d.Holders)
	return d, !same
}

// last is the token of the last claim of a rack that the plan knows of; 0: it was never served.
func (v *view) last(rack int) int64 {
	if v.plan == nil || len(v.plan.Holders) != len(v.cluster.Racks) {
		return 0
	}
	return v.plan.Holders[rack].Token
}

// isOut reports whether jobs may begin without a rack that nobody claims: it was served once, and has not been for a while.
func (v *view) isOut(rack int, now time.Time) bool {
	if v.cluster.Loss() != racks.LossGoOn || v.last(rack) == 0 {
		return false
	}
	name := v.cluster.Racks[rack].Name
	if _, is := v.lost[name]; !is {
		v.lost[name] = now
	}
	return v.plan.Holders[rack].Out || now.Sub(v.lost[name]) >= v.goOn
}
