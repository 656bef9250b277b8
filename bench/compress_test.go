package bench

import (
	"math"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/codec"
)

// codedReference returns what plain Go computes of a tensor with these codecs.
func codedReference(t *testing.T, s Spec, codecs string, tensor int) []float32 {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.codecs, err = codec.ParsePair(codecs, true); err != nil {
		t.Fatal(err)
	}
	rule, h, err := s.optimizer()
	if err != nil {
		t.Fatal(err)
	}
	return referenceTensor(&s, rule, rule.Rounded(h), tensor)
}

// What the workers of a job without answers' codec lost is only delayed, and codecs that lose nothing change nothing.
func TestTheReferenceIsNearThatWithoutCodecs(t *testing.T) {
	for _, optimizer := range []string{"sum", "sgd_torch"} {
		s := momentumSpec("auto")
		if s.Optimizer = optimizer; optimizer == "sum" {
			s.Hyper = nil
		}
		for tensor := range s.Model.Tensors {
			plain := codedReference(t, s, "none", tensor)
			if same := codedReference(t, s, "topk:1/none", tensor); !slices.Equal(same, plain) {
				t.Errorf("%s, tensor %d: all elements are not the gradient", optimizer, tensor)
			}
			for codecs, most := range map[string]float64{"int8": 0.02, "int8/none": 0.02, "none/int8": 0.02, "int4": 0.4, "fp8-e4m3": 0.06} {
				var lost, energy float64
				for i, x := range codedReference(t, s, codecs, tensor) {
					lost, energy = lost+math.Pow(float64(x-plain[i]), 2), energy+math.Pow(float64(plain[i]), 2)
				}
				if coded := s.Model.Tensors[tensor].Elems() > 100; (lost > 0) != coded || lost > most*most*energy {
					t.Errorf("%s with %s, tensor %d: off by %.4f of it, want at most %v", optimizer, codecs, tensor, math.Sqrt(lost/energy),
						most)
				}
			}
		}
	}
}

func TestTheReferenceFollowsTheCodecsThatWorkersWereTold(t *testing.T) {
	s := momentumSpec("auto")
	for compress, wants := range map[string][]string{
		"int8/int8": nil, "none": nil, "sign:1/none": {`"sign:1"`},
	} {
		if err := s.take(&workerReport{Compress: compress, Outer: "none", Core: "f32"}); err == nil {
			if s.codecs.String() != compress || wants != nil {
				t.Errorf("%s is read as %v", compress, s.codecs)
			}
		} else {
			mentions(t, err.Error(), wants...)
		}
	}
	const meet = "every=2,rule=nesterov,lr=0.7,momentum=0.9"
	err := s.take(&workerReport{Compress: "int8/int8", Outer: meet, Core: "f32", Racks: []int{1, 2}})
	if err == nil {
		t.Fatal("answers that differ by rack are verified")
	}
	mentions(t, err.Error(), "int8", "every=2", "use --compress int8/none")
}
