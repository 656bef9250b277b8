package ratecontrol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Decision is a choice of codecs for all groups, from a step on.
type Decision struct {
	Version uint32 // 1, 2, …
	Step    uint64 // the first step that uses it
	Codecs  []uint8
	Bytes   int64 // of a step, headers included, unless values are not finite
	Budget  int64
	// Distortion is the share of the groups' worth that the codecs are expected to lose. No choice that was allowed loses a smaller
	// share than Bound.
	Distortion, Bound float64
}

// text returns the line of a decision in a log, such as "3 from step 152: int4*12 int8 none*3".
func (d *Decision) text(codecs []Codec) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d from step %d:", d.Version, d.Step)
	for g := 0; g < len(d.Codecs); {
		n := 1
		for g+n < len(d.Codecs) && d.Codecs[g+n] == d.Codecs[g] {
			n++
		}
		fmt.Fprintf(&b, " %s", codecs[d.Codecs[g]].Name)
		if n > 1 {
			fmt.Fprintf(&b, "*%d", n)
		}
		g += n
	}
	return b.String()
}

// parse reads the line of a decision about so many groups.
func parse(line string, codecs []Codec, groups int) (d Decision, err error) {
	head, list, _ := strings.Cut(line, ":")
	if n, err := fmt.Sscanf(head, "%d from step %d", &d.Version, &d.Step); n != 2 || err != nil {
		return Decision{}, fmt.Errorf("decision %q: write VERSION from step STEP: CODEC*GROUPS …", line)
	}
	for field := range strings.FieldsSeq(list) {
		name, times, repeated := strings.Cut(field, "*")
		n := 1
		if repeated {
			n, err = strconv.Atoi(times)
		}
		c := slices.IndexFunc(codecs, func(c Codec) bool { return c.Name == name })
		if err != nil || n < 1 || n > groups || c < 0 {
			return Decision{}, fmt.Errorf("decision %d: %q: use a candidate's name, or name*number for several groups", d.Version, field)
		}
		d.Codecs = append(d.Codecs, slices.Repeat([]uint8{uint8(c)}, n)...)
	}
	if len(d.Codecs) != groups {
		return Decision{}, fmt.Errorf("decision %d is about %d groups, but the job has %d: replay it with the job that wrote it", d.Version,
			len(d.Codecs), groups)
	}
	return d, nil
}
