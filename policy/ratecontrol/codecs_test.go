package ratecontrol

import (
	"testing"

	"github.com/rackweave/rackweave/codec"
)

// candidates returns all codecs, and their specs by number.
func candidates(t *testing.T) (all []Codec, specs []codec.Spec) {
	for _, name := range codec.Names() {
		s, err := codec.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if specs = append(specs, s); s.ID == codec.Raw {
			continue
		}
		all = append(all, Codec{Name: s.String(), Bytes: s.Bytes, Distortion: s.Distortion()})
	}
	return all, specs
}

func TestDecisionsHaveTheBytesThatCodecsSend(t *testing.T) {
	all, specs := candidates(t)
	var groups []Group
	for _, elems := range []int{20000, 1023, 5000, 100000} {
		groups = append(groups, Group{Elems: elems, Chunk: 8192})
	}
	for _, text := range []string{"auto:budget=0.02", "auto:budget=0.05", "auto:budget=0.1", "auto:budget=0.2", "auto:budget=0.9"} {
		spec, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		n := New(Config{Spec: spec, Codecs: all, Groups: groups, Ranks: 1})
		acts := n.On(Event{Kind: Begin}, nil)
		if len(acts) != 1 || acts[0].Kind != Propose {
			t.Fatalf("%s: a job that begins raw acts by %+v, want a proposal", text, acts)
		}
		d, sent := acts[0].Decision, int64(0)
		for g, c := range d.Codecs {
			for first := 0; first < groups[g].Elems; first += 8192 {
				x := make([]float32, min(8192, groups[g].Elems-first))
				sent += int64(specs[c].Encode(make([]byte, 4*len(x)), x, nil, 1, codec.Key{}))
			}
		}
		if sent != d.Bytes {
			t.Errorf("%s: %s: %d bytes are sent, %d were decided", text, n.Line(d), sent, d.Bytes)
		}
	}
}
