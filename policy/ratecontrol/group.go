package ratecontrol

import (
	"cmp"
	"math"
)

// Codec is a format that a group may use.
type Codec struct {
	Name string
	// Bytes returns the length of the payload for a chunk of so many elements.
	Bytes func(elems int) int
	// Distortion is the share of the energy that is expected to be lost, ‖x-C(x)‖²/‖x‖², until it has been measured.
	Distortion float64
}

// Raw is the number of the codec that leaves values as they are. The codecs of a [Config] have the numbers from 1.
const Raw = 0

// Group is a tensor, or a part of a large one: elements that take the same codec. One of less than 4 KiB keeps its first codec.
type Group struct {
	Elems  int
	Chunk  int     // elements of a chunk; the last may have fewer. If 0, the group is one chunk.
	Weight float64 // of its distortion, and its structural attention in law ace. If 0, 1.
}

// Sample has the sums of the squares of the elements of a group's chunks, and of what the codec loses of them.
type Sample struct {
	Group        int
	Codec        uint8
	Elems        int // of the chunks that the sums are about
	Energy, Lost float64
}

const (
	smallest = 1024 // elements of a group whose codec changes
	fading   = 0.1  // weight of a step in a group's averages
	probing  = 0.5  // weight of a probe in a distortion
)

// table holds what is known of all groups and codecs. The entry of group g and codec c is at g*len(names)+c.
type table struct {
	groups []Group
	names  []string // of codecs
	bytes  []int64
	lost   []float64 // distortion
	raw    int64
	chunks int

	density       []float64  // mean square of an element; -1 until known
	rms, variance []float64  // its root, and how that varies from step to step
	rows          [][]Sample // by rank and group; nil if folded, without elements if unknown
}

func (t *table) init(groups []Group, codecs []Codec, ranks int) {
	n := len(groups)
	codecs = append([]Codec{{Name: "none", Bytes: func(n int) int { return 4 * n }}}, codecs...)
	for _, c := range codecs {
		t.names = append(t.names, c.Name)
	}
	t.rms, t.variance, t.rows = make([]float64, n), make([]float64, n), make([][]Sample, ranks)
	for _, g := range groups {
		g.Weight, g.Chunk = cmp.Or(g.Weight, 1), cmp.Or(g.Chunk, g.Elems)
		whole, rest := g.Elems/g.Chunk, g.Elems%g.Chunk
		for _, c := range codecs {
			n := int64(whole) * int64(c.Bytes(g.Chunk))
			if rest > 0 {
				n += int64(c.Bytes(rest))
			}
			t.bytes, t.lost = append(t.bytes, n), append(t.lost, c.Distortion)
		}
		t.chunks += whole + min(rest, 1)
		t.raw += int64(4 * g.Elems)
		t.groups, t.density = append(t.groups, g), append(t.density, -1)
	}
}

func (t *table) at(g int, c uint8) int { return g*len(t.names) + int(c) }

// length returns the bytes of a step.
func (t *table) length(codecs []uint8) (n int64) {
	for g, c := range codecs {
		n += t.bytes[t.at(g, c)]
	}
	return n
}

// valid reports whether a sample can be true.
func (t *table) valid(s Sample) bool {
	return s.Group >= 0 && s.Group < len(t.groups) && int(s.Codec) < len(t.names) && s.Elems > 0 && s.Energy >= 0 && s.Lost >= 0 &&
		!math.IsInf(s.Energy+s.Lost, 1)
}

// measured takes what the headers of a rank's chunks tell of a step. When all live ranks have told, it folds their samples in rank
// order, so that the order of arrival changes no bit.
func (t *table) measured(rank int, samples []Sample, links []link) {
	t.rows[rank] = make([]Sample, len(t.groups))
	for _, s := range samples {
		if t.valid(s) {
			t.rows[rank][s.Group] = s
		}
	}
	for r, row := range t.rows {
		if links[r].live && row == nil {
			return
		}
	}
	for g := range t.groups {
		sum, density := Sample{Group: g}, 0.0 // with the number of ranks, instead of elements
		for r, row := range t.rows {
			if !links[r].live || row[g].Elems == 0 {
				continue
			}
			s := &row[g]
			if sum.Elems++; sum.Elems == 1 {
				sum.Codec = s.Codec // distortions of others do not count in a step of several
			}
			if s.Codec == sum.Codec {
				sum.Energy, sum.Lost = sum.Energy+s.Energy, sum.Lost+s.Lost
			}
			density += s.Energy / float64(s.Elems)
		}
		if sum.Elems > 0 {
			t.observe(g, density/float64(sum.Elems))
			t.lose(sum, fading)
		}
	}
	clear(t.rows)
}

// probed takes the samples of a chunk that was encoded with several codecs.
func (t *table) probed(samples []Sample) {
	for _, s := range samples {
		if !t.valid(s) {
			continue
		}
		if t.lose(s, probing); s.Codec == Raw {
			t.observe(s.Group, s.Energy/float64(s.Elems))
		}
	}
}

func (t *table) observe(g int, density float64) {
	rms := math.Sqrt(density)
	if t.density[g] < 0 {
		t.density[g], t.rms[g] = density, rms
		return
	}
	d := rms - t.rms[g]
	t.rms[g] += float64(fading * d)
	t.variance[g] = (1 - fading) * (t.variance[g] + float64(float64(fading*d)*d))
	t.density[g] = float64(fading*density) + float64((1-fading)*t.density[g])
}

func (t *table) lose(s Sample, weight float64) {
	if l := &t.lost[t.at(s.Group, s.Codec)]; s.Energy > 0 && s.Codec != Raw {
		*l = float64(weight*(s.Lost/s.Energy)) + float64((1-weight)**l)
	}
}

const (
	margin = 0.9 // the share of the bandwidth that a budget uses
	// Of law ace: the weight of the gradients' statistics in a group's importance (equation 3), and for a budget the least and the
	// most compression, and how it falls with each Mb/s (equation 5).
	alpha, cmin, cmax, beta = 0.5, 1, 32, 0.02
)

// worth writes each group's value. A codec keeps the share of it that it does not lose. By law greedy the value is the energy of
// the group's gradients, or until that is known, of a typical element. By law ace it is the importance of the group's elements
// (equations 3 and 4).
func (s *Spec) worth(t *table, to []float64) {
	if s.Law == aceLaw {
		rms, variance := scores(t.rms), scores(t.variance)
		for g := range to {
			attention := 1 / (1 + math.Exp(-(rms[g] + variance[g])))
			importance := float64(alpha*attention) + float64((1-alpha)*t.groups[g].Weight)
			to[g] = importance * float64(t.groups[g].Elems)
		}
		return
	}
	known, sum := 0.0, 0.0
	for _, d := range t.density {
		if d >= 0 {
			known, sum = known+1, sum+d
		}
	}
	for g, d := range t.density {
		if d < 0 && known > 0 {
			d = sum / known
		}
		to[g] = t.groups[g].Weight * math.Abs(d) * float64(t.groups[g].Elems)
	}
}

// scores returns the logarithms of x with mean 0 and variance 1, and 0 for that of 0.
func scores(x []float64) []float64 {
	z, sum, squares, n := make([]float64, len(x)), 0.0, 0.0, 0.0
	for i, v := range x {
		if z[i] = math.Log(v); v > 0 {
			sum, n = sum+z[i], n+1
		}
	}
	mean := sum / max(n, 1)
	for i, v := range x {
		if z[i] -= mean; v > 0 {
			squares += float64(z[i] * z[i])
		}
	}
	deviation := math.Sqrt(squares / max(n, 1))
	for i, v := range x {
		if z[i] /= deviation; !(v > 0 && deviation > 0) {
			z[i] = 0
		}
	}
	return z
}
