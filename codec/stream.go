package codec

// AnswerRank takes the place of a worker's rank in the keys of answers.
const AnswerRank = 1<<32 - 1

// Stream is one sender's end of a tensor that travels in chunks, step by step, in plain Go. Its results are the bits with which
// workers and aggregators are compared.
type Stream struct {
	Spec  Spec
	Chunk int       // elements of a chunk
	Kept  []float32 // the residual, or the reference
	Key   Key       // of the next step
}

// NewStream returns a stream of a tensor of so many elements. key has the first step.
func NewStream(s Spec, elems, chunk int, key Key) *Stream {
	return &Stream{Spec: s, Chunk: chunk, Kept: make([]float32, elems), Key: key}
}

// Gradient returns the values that the receiver decodes of a gradient, by [Spec.Encode].
func (s *Stream) Gradient(g []float32, factor float32) []float32 {
	return s.send(g, func(p []byte, g, kept []float32, key Key) int { return s.Spec.Encode(p, g, kept, factor, key) })
}

// Parameters returns the parameters that the receiver has after their changes were sent, by [Spec.EncodeChange].
func (s *Stream) Parameters(w []float32) []float32 {
	s.send(w, s.Spec.EncodeChange)
	return append([]float32(nil), s.Kept...)
}

func (s *Stream) send(x []float32, encode func(p []byte, x, kept []float32, key Key) int) []float32 {
	out, p := make([]float32, len(x)), make([]byte, 4*s.Chunk)
	for at := 0; at < len(x); at += s.Chunk {
		end := min(at+s.Chunk, len(x))
		s.Key.First = uint64(at)
		n := encode(p[:4*(end-at)], x[at:end], s.Kept[at:end], s.Key)
		if err := Decode(out[at:end], p[:n]); err != nil {
			panic(err)
		}
	}
	s.Key.Step++
	return out
}
