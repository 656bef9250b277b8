package learn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy/ratecontrol"
)

// scheme is a way to send gradients and answers.
type scheme struct {
	codec.Pair
	name     string
	feedback bool
	control  *ratecontrol.Spec // chooses the codecs of gradients, if it is not nil
	random   bool              // groups have random weights for it
	raw      int               // steps that gradients travel raw in, at first
	// Workers make local steps between rounds, in which they send how far they came, if local is not 0: so many steps, or at most so
	// many if drift is not 0. Then the number follows the distance of their parameters, relative to the length of the parameters.
	local int
	drift float64
}

const (
	noFeedback = "without feedback"
	atRandom   = "at random"
	mostLocal  = 4 // steps, where they follow the drift
)

// parseScheme parses CODEC[/ANSWERS] or a controller's spec, followed by a space and a list of the words in the constants above,
// raw=STEPS, every=STEPS or drift=D.
func parseScheme(way string) (s scheme, err error) {
	text, rest, _ := strings.Cut(way, " ")
	s = scheme{name: way, feedback: true}
	if ratecontrol.Is(text) {
		s.control = new(ratecontrol.Spec)
		if *s.control, err = ratecontrol.Parse(text); err == nil && s.control.Answers != "" {
			s.Down, err = codec.Parse(s.control.Answers)
		}
	} else {
		if !strings.Contains(text, "/") {
			text += "/none"
		}
		s.Pair, err = codec.ParsePair(text, true)
	}
	if err != nil {
		return scheme{}, err
	}
	for part := range strings.SplitSeq(rest, ", ") {
		key, value, _ := strings.Cut(part, "=")
		switch {
		case part == "":
		case part == noFeedback:
			s.feedback = false
		case part == atRandom:
			s.random = true
		case key == "raw":
			s.raw, err = strconv.Atoi(value)
		case key == "every":
			s.local, err = strconv.Atoi(value)
		case key == "drift":
			s.local = mostLocal
			s.drift, err = strconv.ParseFloat(value, 64)
		default:
			err = fmt.Errorf("unknown part %q", part)
		}
		if err != nil {
			return scheme{}, fmt.Errorf("way %q: %w", way, err)
		}
	}
	return s, nil
}

// control is a controller with what it chooses from. Its groups are the payloads.
type control struct {
	*ratecontrol.Controller
	codecs []codec.Spec // by its numbers
	acts   []ratecontrol.Act
	now    ratecontrol.Decision
}

// distortion returns what a codec loses of Gaussian values: a controller expects it until it has measured.
func distortion(spec codec.Spec) float64 {
	const n = 4096
	chance, x, p := rand.New(rand.NewPCG(1, 9)), make([]float32, n), make([]byte, 4*n)
	for i := range x {
		x[i] = float32(chance.NormFloat64())
	}
	s := sample(0, 0, x, p[:spec.Encode(p, x, nil, 1, codec.Key{})])
	return s.Lost / s.Energy
}

func newControl(s *scheme, r *codedRun) (*control, error) {
	c := &control{codecs: []codec.Spec{{}}}
	config := ratecontrol.Config{Spec: *s.control, Ranks: codedWorkers}
	for name := range strings.SplitSeq(s.control.Codecs, "+") {
		spec, err := codec.Parse(name)
		if err != nil {
			return nil, err
		}
		c.codecs = append(c.codecs, spec)
		config.Codecs = append(config.Codecs, ratecontrol.Codec{Name: spec.String(), Bytes: spec.Bytes, Distortion: distortion(spec)})
	}
	chance := rand.New(rand.NewPCG(r.seed, 9))
	for first, end := range r.payloads() {
		g := ratecontrol.Group{Name: fmt.Sprint(first), Elems: end - first}
		if s.random {
			g.Weight = chance.Float64()
		}
		config.Groups = append(config.Groups, g)
	}
	var err error
	if c.Controller, err = ratecontrol.New(config); err != nil {
		return nil, err
	}
	c.now = c.Current()
	return c, nil
}

// on hands an event to the controller. All workers accept what it proposes at once.
func (c *control) on(e ratecontrol.Event, probe func(rank int)) {
	c.acts = c.On(e, c.acts[:0])
	for _, a := range c.acts {
		switch a.Kind {
		case ratecontrol.Propose:
			for rank := range codedWorkers {
				c.On(ratecontrol.Event{Kind: ratecontrol.Accept, Rank: rank, Version: a.Decision.Version}, nil)
			}
		case ratecontrol.Probe:
			probe(a.Rank)
		}
	}
}

// begin announces a round, and takes over the decision that is effective from it on.
func (c *control) begin(round int, probe func(rank int)) {
	for rank := range codedWorkers {
		c.on(ratecontrol.Event{Kind: ratecontrol.Begin, Rank: rank, Step: uint64(round)}, probe)
	}
	if d := c.Current(); d.Step <= uint64(round) {
		c.now = d
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

// probe encodes the gradient at hand in each candidate, for a controller.
func (r *codedRun) probe(rank int) {
	var samples []ratecontrol.Sample
	for first, end := range r.payloads() {
		x := r.g[first:end]
		for number, spec := range r.control.codecs {
			p := r.payload[:spec.Encode(r.payload, x, nil, 1, r.key(rank, first))]
			samples = append(samples, sample(first/r.coded.payload, uint8(number), x, p))
		}
	}
	r.control.on(ratecontrol.Event{Kind: ratecontrol.Probed, Rank: rank, Samples: samples}, nil)
}

// walk makes a worker's local steps, and sets g to how far they come. It returns their length, relative to that of the parameters.
func (r *codedRun) walk(w, steps int) float64 {
	copy(r.own, r.reference)
	for range steps {
		r.task.gradient(r.own, r.g, r.shards[w].draw(r.chance, r.batch))
		r.rules[w].update(r.own, r.g)
	}
	distance, length := 0.0, 0.0
	for i, v := range r.reference {
		d := v - r.own[i]
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
