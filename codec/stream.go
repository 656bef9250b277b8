package codec

import "math"

// AnswerRank takes the place of a worker's rank in the keys of answers.
const AnswerRank = 1<<32 - 1

// Stream is one sender's end of a tensor that travels in chunks, step by step, in plain Go. Its results are the bits with which
// workers and aggregators are compared.
type Stream struct {
	Spec  Spec
	Specs []Spec    // by chunk. If nil, all have Spec
	Chunk int       // elements of a chunk
	Kept  []float32 // the residual, or the reference
	Key   Key       // of the next step
	// Sent is called with the first element of each chunk, what the receiver decodes, and the payload. It may be nil.
	Sent func(first int, x []float32, p []byte)
}

// NewStream returns a stream of a tensor of so many elements. key has the first step.
func NewStream(s Spec, elems, chunk int, key Key) *Stream {
	return &Stream{Spec: s, Chunk: chunk, Kept: make([]float32, elems), Key: key}
}

// Gradient returns the values that the receiver decodes of a gradient, by [Spec.Encode].
func (s *Stream) Gradient(g []float32, factor float32) []float32 {
	return s.send(g, func(c Spec, p []byte, g, kept []float32, key Key) int { return c.Encode(p, g, kept, factor, key) })
}

// Parameters returns the parameters that the receiver has after their changes were sent, by [Spec.EncodeChange].
func (s *Stream) Parameters(w []float32) []float32 {
	s.send(w, Spec.EncodeChange)
	return append([]float32(nil), s.Kept...)
}

func (s *Stream) send(x []float32, encode func(c Spec, p []byte, x, kept []float32, key Key) int) []float32 {
	out, p := make([]float32, len(x)), make([]byte, 4*s.Chunk)
	for at := 0; at < len(x); at += s.Chunk {
		end, spec := min(at+s.Chunk, len(x)), s.Spec
		if s.Specs != nil {
			spec = s.Specs[at/s.Chunk]
		}
		s.Key.First = uint64(at)
		n := encode(spec, p[:4*(end-at)], x[at:end], s.Kept[at:end], s.Key)
		if err := Decode(out[at:end], p[:n]); err != nil {
			panic(err)
		}
		if s.Sent != nil {
			s.Sent(at, out[at:end], p[:n])
		}
	}
	s.Key.Step++
	return out
}

// Distortion returns the share of the energy of Gaussian values that the codec loses.
func (s Spec) Distortion() float64 {
	const elems = 4096
	x, p := make([]float32, elems), make([]byte, 4*elems)
	for i := range x { // all quantiles, scattered by the golden ratio
		x[i] = float32(math.Sqrt2 * math.Erfinv((float64(2*(2531*i%elems))+1)/elems-1))
	}
	n := s.Encode(p, x, nil, 1, Key{})
	if h := HeaderOf(p); n < len(p) {
		return float64(h.Lost) / float64(h.Energy)
	}
	return 0
}
