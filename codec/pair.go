package codec

import (
	"fmt"
	"strings"
)

// Pair holds the codecs of a job. The zero value sends everything raw.
type Pair struct {
	Up, Down Spec // of the workers' gradients, and of the answers
	// Auto is the text by which a controller chooses the gradients' codecs while the job runs: auto, or auto:NAME=VALUE,…. Up is
	// their codec until then. If "", Up stays.
	Auto string
}

// ParsePair returns the codecs that text names, as CODEC or CODEC/ANSWERS: int4, sign/int8 or 2bit:0.5/none for instance. Without
// the second codec, answers take the first one if that is dense enough, otherwise int8. If answers is false, the job cannot shorten
// its answers. Empty text names no codec. Of auto:…, ParsePair reads codecs=CODEC+…, whose first is Up instead of int8, and
// answers=CODEC.
func ParsePair(text string, answers bool) (p Pair, err error) {
	if name, parameters, _ := strings.Cut(text, ":"); name == "auto" {
		return parseAuto(text, parameters, answers)
	}
	up, down, given := strings.Cut(text, "/")
	switch {
	case text == "":
		return Pair{}, nil
	case up == "" || given && down == "":
		return Pair{}, fmt.Errorf("codecs %q: a codec is missing: use CODEC or CODEC/ANSWERS, with none for values as they are", text)
	}
	if p.Up, err = Parse(up); err != nil {
		return Pair{}, err
	}
	switch {
	case given:
		if p.Down, err = Parse(down); err != nil {
			return Pair{}, err
		}
	case answers && p.Up.Dense():
		p.Down = p.Up
	case answers:
		p.Down = Spec{ID: Int8}
	}
	switch {
	case !p.Down.Dense():
		return Pair{}, fmt.Errorf("codecs %q: answers in %v would add a second large loss to that of the gradients: use none, int8, int4 "+
			"or fp8-e4m3", text, p.Down)
	case !answers && p.Down.ID != Raw:
		return Pair{}, fmt.Errorf("codecs %q: answers in %v need mode eager or aggregate: use %v/none", text, p.Down, p.Up)
	}
	return p, nil
}

func parseAuto(text, parameters string, answers bool) (Pair, error) {
	up, down := "int8", ""
	for part := range strings.SplitSeq(parameters, ",") {
		key, value, _ := strings.Cut(part, "=")
		switch key, value = strings.TrimSpace(key), strings.TrimSpace(value); {
		case value == "": // the controller's parser refuses it
		case key == "codecs":
			up, _, _ = strings.Cut(value, "+")
		case key == "answers":
			down = "/" + value
		}
	}
	p, err := ParsePair(up+down, answers)
	p.Auto = text
	return p, err
}

// Dense reports whether a codec keeps every element, in 4 bits or more.
func (s Spec) Dense() bool { return s.ID == Raw || table[s.ID].bits >= 4 }

// Share returns the share of a chunk's bytes in f32 that the longer of the two payloads has.
func (p Pair) Share() float64 {
	const elems = 8192 // of a chunk of the usual size
	return float64(max(p.Up.Bytes(elems), p.Down.Bytes(elems))) / (4 * elems)
}

func (p Pair) String() string {
	switch {
	case p == (Pair{}):
		return "none"
	case p.Auto != "":
		return p.Auto
	}
	return p.Up.String() + "/" + p.Down.String()
}
