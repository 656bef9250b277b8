package ratecontrol

import (
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/codec"
)

// candidates returns the job's codecs as the package's doc advises.
func candidates(t *testing.T) (all []Codec, specs []codec.Spec) {
	r, x, p := rand.New(rand.NewPCG(1, 1)), make([]float32, 8192), make([]byte, 4*8192)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, name := range codec.Names() {
		s, err := codec.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if specs = append(specs, s); s.ID == codec.Raw {
			continue
		}
		h := codec.HeaderOf(p[:s.Encode(p, x, nil, 1, codec.Key{})])
		all = append(all, Codec{Name: s.String(), Bytes: s.Bytes, Distortion: float64(h.Lost / h.Energy)})
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
		for _, a := range n.On(Event{Kind: Begin}, nil) {
			if a.Kind != Propose {
				continue
			}
			var sent int64
			for g, c := range a.Decision.Codecs {
				for first := 0; first < groups[g].Elems; first += 8192 {
					x := make([]float32, min(8192, groups[g].Elems-first))
					sent += int64(specs[c].Encode(make([]byte, 4*len(x)), x, nil, 1, codec.Key{}))
				}
			}
			if t.Logf("%s: %s, %d bytes", text, n.Line(a.Decision), sent); sent != a.Decision.Bytes {
				t.Errorf("%s: %d bytes are sent, %d were decided", text, sent, a.Decision.Bytes)
			}
		}
	}
}
