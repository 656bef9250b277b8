package racks

import (
	"fmt"
	"io"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
)

// Claim is something that measured rows must show.
type Claim struct {
	Text  string
	Value float64
	Holds bool
	Void  bool // a row shows the machine rather than its links
}

// The limits of claims.
const (
	mostOfBound   = 1.10 // a step's time over what links allow
	mostOff       = 0.15 // a prediction's error
	mostFromBest  = 1.05 // the planner's pick over the fastest shape
	mostUplink    = 1.03 // bytes of an uplink, with headers, over those of the shape
	leastOfPeers  = 1.5  // another library's time over ours, in one rack
	leastOfFlat   = 3    // flat's time over the best shape's
	flatClaimedAt = 8    // over this core, or a narrower one
)

// Claims checks what rows must show.
func Claims(rows []Row) (all []Claim) {
	measured := make([]*Row, 0, len(rows))
	for i := range rows {
		if rows[i].Error == "" {
			measured = append(measured, &rows[i])
		}
	}
	claim := func(text string, value float64, holds bool, of ...*Row) {
		c := Claim{Text: text, Value: value, Holds: holds}
		for _, r := range of {
			c.Void = c.Void || r.Void() != ""
		}
		all = append(all, c)
	}
	for _, r := range measured {
		if r.Shape == "" {
			continue
		}
		shape, err := hierarchy.ParseShape(r.Shape)
		if err != nil {
			continue
		}
		over := r.Seconds / r.Bound
		claim(fmt.Sprintf("%s: at most %.2f of the bound", r.Key(), mostOfBound), over, over <= mostOfBound, r)
		off := r.Predicted/r.Seconds - 1
		claim(fmt.Sprintf("%s: predicted within %.0f%%", r.Key(), 100*mostOff), off, max(off, -off) <= mostOff, r)
		off = r.Fabric.Simulated(shape, r.Bytes)/r.Seconds - 1
		claim(fmt.Sprintf("%s: simulated within %.0f%%", r.Key(), 100*mostOff), off, max(off, -off) <= mostOff, r)
		if r.Fabric.Racks > 1 {
			want := r.Fabric.Planned().Loads(shape)[planner.Uplink]
			share := r.Uplinks / r.Bytes / want
			claim(fmt.Sprintf("%s: an uplink carries %.2f models a step", r.Key(), want), share, share <= mostUplink, r)
		}
	}
	for _, group := range grouped(measured) {
		compare(group, claim)
	}
	return all
}

// grouped divides rows by their links and models, in order.
func grouped(rows []*Row) (groups [][]*Row) {
	place := map[string]int{}
	for _, r := range rows {
		key := r.Fabric.Links() + r.Model
		i, known := place[key]
		if !known {
			i = len(groups)
			place[key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

// compare makes the claims about rows of the same links and model.
func compare(group []*Row, claim func(text string, value float64, holds bool, of ...*Row)) {
	var fastest, pick, flat *Row
	for _, r := range group {
		if r.Shape == "" {
			continue
		}
		if fastest == nil || r.Seconds < fastest.Seconds {
			fastest = r
		}
		if pick == nil || r.Predicted < pick.Predicted {
			pick = r
		}
		if r.Shape == hierarchy.Flat.String() {
			flat = r
		}
	}
	if fastest == nil {
		return
	}
	if pick.Fabric.Racks > 1 {
		over := pick.Seconds / fastest.Seconds
		text := fmt.Sprintf("%s: the planner's pick takes at most %.2f of the fastest", pick.Key(), mostFromBest)
		claim(text, over, over <= mostFromBest, pick, fastest)
		if flat != nil && flat.Fabric.Racks == 2 && flat.Fabric.Core >= flatClaimedAt {
			ratio := flat.Seconds / fastest.Seconds
			text := fmt.Sprintf("%s: at least %d times %s", flat.Key(), leastOfFlat, fastest.Name)
			claim(text, ratio, ratio >= leastOfFlat, flat, fastest)
		}
		return
	}
	for _, r := range group {
		if r.Name == "Gloo ring" || r.Name == "MXNet colocated" {
			ratio := r.Seconds / fastest.Seconds
			text := fmt.Sprintf("%s: at least %.1f times ours", r.Key(), leastOfPeers)
			claim(text, ratio, ratio >= leastOfPeers, r, fastest)
		}
	}
}

// WriteClaims prints claims, and returns how many do not hold, of the claims that rows tell of.
func WriteClaims(w io.Writer, claims []Claim) (failed int) {
	void := 0
	for _, c := range claims {
		verdict := "holds"
		switch {
		case c.Void:
			void++
			verdict = "void"
		case !c.Holds:
			failed++
			verdict = "FAILS"
		}
		fmt.Fprintf(w, "%-5s  %8.3f  %s\n", verdict, c.Value, c.Text)
	}
	if void > 0 {
		fmt.Fprintf(w, "%d of %d claims are void: run it again on a quiet machine; the table's remarks say why\n", void, len(claims))
	}
	return failed
}
