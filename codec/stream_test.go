package codec

import (
	"slices"
	"testing"
)

// The receiver adds the values of a change to what it has, and takes raw parameters as they are.
func TestAReceiverOfChangesHasTheReference(t *testing.T) {
	const chunk, elems = 256, 1000
	for _, s := range specs {
		stream, w, has := NewStream(s, elems, chunk, Key{Seed: 3, Rank: AnswerRank}), gaussian(elems, 1), make([]float32, elems)
		for step := range 5 {
			for i, d := range gaussian(elems, uint64(step+2)) {
				w[i] += d / 16
			}
			before := slices.Clone(stream.Kept)
			key := stream.Key
			want := stream.Parameters(w)
			for at := 0; at < elems; at += chunk {
				end := min(at+chunk, elems)
				p, kept := make([]byte, 4*chunk), slices.Clone(before[at:end])
				key.First = uint64(at)
				n := s.EncodeChange(p, w[at:end], kept, key)
				values := make([]float32, end-at)
				if err := Decode(values, p[:n]); err != nil {
					t.Fatal(err)
				}
				for i := range values {
					if n == 4*len(values) {
						has[at+i] = values[i]
					} else {
						has[at+i] += values[i]
					}
				}
			}
			if !slices.Equal(has, want) {
				t.Fatalf("%v, step %d: the receiver has other parameters than the reference", s, step)
			}
		}
	}
}

func TestAStreamSendsWhatEncodeSends(t *testing.T) {
	s := Spec{ID: Int4, Stochastic: true}
	stream, e := NewStream(s, 700, 512, Key{Step: 7, Tensor: 2, Rank: 1}), make([]float32, 700)
	for step := range uint32(3) {
		g := gaussian(700, uint64(step))
		got := stream.Gradient(g, 0.5)
		for _, cut := range [][2]int{{0, 512}, {512, 700}} {
			from, to := cut[0], cut[1]
			p := make([]byte, 4*512)
			n := s.Encode(p, g[from:to], e[from:to], 0.5, Key{Step: 7 + step, Tensor: 2, Rank: 1, First: uint64(from)})
			want := make([]float32, to-from)
			if err := Decode(want, p[:n]); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got[from:to], want) || !slices.Equal(stream.Kept[from:to], e[from:to]) {
				t.Fatalf("step %d, elements %d to %d differ", step, from, to)
			}
		}
	}
}
