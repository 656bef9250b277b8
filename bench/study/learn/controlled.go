package learn

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy/ratecontrol"
)

// scheme is a way to send gradients and answers.
type scheme struct {
	codec.Pair
	name     string
	feedback bool
	random   bool // groups have random weights for the controller, if Auto is not empty
	raw      int  // steps that gradients travel raw in, at first
	// Workers make local steps between rounds, in which they send how far they came, if local is not 0: so many steps, or at most so
	// many if drift is not 0. Then the number follows the distance of their parameters, relative to the length of the parameters.
	local int
	drift float64
}

const (
	noFeedback = "without feedback"
	atRandom   = "at random"
	mostLocal  = 4   // steps, where they follow the drift
	probeEvery = 100 // rounds
)

// parseScheme parses CODEC[/ANSWERS] or a controller's spec, a space, and raw=STEPS, every=STEPS or drift=D, before words in the
// constants above. Answers are raw unless the way names their codec.
func parseScheme(way string) (s scheme, err error) {
	text, rest, _ := strings.Cut(way, " ")
	s = scheme{name: way, feedback: !strings.Contains(rest, noFeedback), random: strings.Contains(rest, atRandom)}
	for format, number := range map[string]any{"raw=%d": &s.raw, "every=%d": &s.local, "drift=%g": &s.drift} {
		fmt.Sscanf(rest, format, number) // an error means that the way has other words
	}
	if s.drift > 0 {
		s.local = mostLocal
	}
	s.Pair, err = codec.ParsePair(text, strings.Contains(text, "/") || strings.Contains(text, "answers="))
	return s, err
}

// control prepares the controller. Its groups are the payloads.
func (r *codedRun) control() error {
	law, err := ratecontrol.Parse(r.Auto)
	if err != nil {
		return err
	}
	r.codecs = []codec.Spec{{}}
	config := ratecontrol.Config{Spec: law, Ranks: codedWorkers}
	for name := range strings.SplitSeq(law.Codecs, "+") {
		spec, err := codec.Parse(name)
		if err != nil {
			return err
		}
		r.codecs = append(r.codecs, spec)
		config.Codecs = append(config.Codecs, ratecontrol.Codec{Name: name, Bytes: spec.Bytes, Distortion: spec.Distortion()})
	}
	chance := random(r.seed, 9)
	for first := 0; first < len(r.params); first += r.payload {
		g := ratecontrol.Group{Elems: min(r.payload, len(r.params)-first)}
		if r.random {
			g.Weight = chance.Float64()
		}
		config.Groups = append(config.Groups, g)
	}
	r.controller = ratecontrol.New(config)
	r.use(r.controller.Current().Codecs)
	return nil
}

// tell hands an event to the controller. All workers accept what it proposes at once.
func (r *codedRun) tell(e ratecontrol.Event) {
	for _, a := range r.controller.On(e, nil) {
		for rank := 0; a.Kind == ratecontrol.Propose && rank < codedWorkers; rank++ {
			r.controller.On(ratecontrol.Event{Kind: ratecontrol.Accept, Rank: rank, Version: a.Decision.Version}, nil)
		}
	}
}

// begin announces a round, and uses the decision that is effective from it on.
func (r *codedRun) begin() {
	for rank := range codedWorkers {
		r.tell(ratecontrol.Event{Kind: ratecontrol.Begin, Rank: rank, Step: uint64(r.round)})
	}
	if r.round%probeEvery == 0 {
		r.probe()
	}
	if d := r.controller.Current(); d.Step <= uint64(r.round) {
		r.use(d.Codecs)
	}
}

// use sets the codec of each payload.
func (r *codedRun) use(chosen []uint8) {
	r.chosen = chosen
	specs := make([]codec.Spec, len(chosen))
	for group, number := range chosen {
		specs[group] = r.codecs[number]
	}
	for w := range r.workers {
		r.workers[w].Specs = specs
	}
}

// sample returns what a payload of x tells a controller.
func sample(group int, number uint8, x []float32, p []byte) ratecontrol.Sample {
	s := ratecontrol.Sample{Group: group, Codec: number, Elems: len(x)}
	if len(p) < 4*len(x) {
		h := codec.HeaderOf(p)
		s.Energy, s.Lost = float64(h.Energy), float64(h.Lost)
		return s
	}
	for _, v := range x {
		s.Energy += float64(v * v)
	}
	return s
}

// probe encodes the gradient at hand in each candidate, for the controller.
func (r *codedRun) probe() {
	var samples []ratecontrol.Sample
	buffer := make([]byte, 4*r.payload)
	for first := 0; first < len(r.g); first += r.payload {
		x := r.g[first:min(first+r.payload, len(r.g))]
		for number, spec := range r.codecs {
			p := buffer[:spec.Encode(buffer, x, nil, 1, codec.Key{Seed: r.seed, Step: uint32(r.step), First: uint64(first)})]
			samples = append(samples, sample(first/r.payload, uint8(number), x, p))
		}
	}
	r.tell(ratecontrol.Event{Kind: ratecontrol.Probed, Samples: samples})
}

// walk makes a worker's local steps, and sets g to how far they come. It returns their length, relative to that of the parameters.
func (r *codedRun) walk(w, steps int) float64 {
	own, worker := slices.Clone(r.answers.Kept), &r.workers[w]
	for range steps {
		r.Gradient(own, r.g, worker.Draw(r.chance, r.batch))
		worker.update(own, r.g)
	}
	distance, length := 0.0, 0.0
	for i, v := range r.answers.Kept {
		d := v - own[i]
		r.g[i] = d
		distance, length = distance+float64(d*d), length+float64(v*v)
	}
	return math.Sqrt(distance / length)
}

// interval returns the local steps of the next round: half of them if a worker went far, and one more if none did (equation 9 of
// ACE-Sync, with the law of the interval ours).
func (s *scheme) interval(steps int, farthest float64) int {
	switch {
	case s.drift == 0:
		return s.local
	case farthest > s.drift:
		return max(steps/2, 1)
	case farthest < s.drift/2:
		return min(steps+1, s.local)
	}
	return steps
}
