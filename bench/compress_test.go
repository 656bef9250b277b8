package bench

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
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
	if testing.Short() {
		t.Skip("computes for long in plain Go: left out by -short")
	}
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
		if err := s.take(&workerReport{Codecs: &report.Codecs{Names: compress}, Outer: "none", Core: "f32"}); err == nil {
			if s.codecs.String() != compress || wants != nil {
				t.Errorf("%s is read as %v", compress, s.codecs)
			}
		} else {
			mentions(t, err.Error(), wants...)
		}
	}
	const meet = "every=2,rule=nesterov,lr=0.7,momentum=0.9"
	err := s.take(&workerReport{Codecs: &report.Codecs{Names: "none"}, Outer: meet, Core: "int4"})
	if err == nil || !strings.Contains(err.Error(), "codecs between racks (core: int4") {
		t.Errorf("codecs between racks that meet: %v", err)
	}
	s = momentumSpec("auto")
	err = s.take(&workerReport{Codecs: &report.Codecs{Names: "int8/int8"}, Outer: meet, Core: "f32", Racks: []int{1, 2}})
	if err == nil {
		t.Fatal("answers that differ by rack are verified")
	}
	mentions(t, err.Error(), "int8", "every=2", "use --compress int8/none")
}

// Every codec and every rule either give every worker plain Go's bits or are refused together, over both software transports.
func TestEveryPairOfCodecAndRuleEqualsPlainGo(t *testing.T) {
	if os.Getenv("RACKWEAVE_LONG") == "" {
		t.Skip("RACKWEAVE_LONG is not set: 338 benchmarks take a minute")
	}
	codecs := append(codec.Names()[1:], "none/int8", "int8:stochastic", "int4:stochastic", "2bit:0.01", "topk:20%")
	for _, rule := range optim.Rules() {
		if rule.NeedsNorms() {
			t.Logf("%v needs a committed step, and benchmarks exchange eagerly", rule)
			continue
		}
		for _, compress := range codecs {
			pair, err := codec.ParsePair(compress, true)
			if err != nil {
				t.Fatal(err)
			}
			for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
				t.Run(fmt.Sprintf("%s %v %s", compress, rule, provider), func(t *testing.T) {
					s := momentumSpec(provider)
					s.Workers, s.Model.Tensors = 2, s.Model.Tensors[:3]
					s.Compress, s.Optimizer, s.Hyper = compress, rule.String(), nil
					if pair.Up.Dense() || !slices.Contains(rule.Takes(), "beta2") {
						exchange(t, s)
					} else if _, err := testRunner(t).Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "use a codec of 4 bits") {
						t.Errorf("got %v, want a refusal", err)
					}
				})
			}
		}
	}
}

// Some codecs and rules that go together give every worker plain Go's bits and send the bytes that the codec says.
func TestCodecsAndRulesEqualPlainGo(t *testing.T) {
	for i, tc := range []struct{ compress, optimizer string }{
		{"int8", "sgd_torch"}, {"int8", "sum"}, {"int4", "adam_torch"}, {"int4:stochastic", "sum"}, {"sign", "sgd_torch"},
		{"2bit:0.5/none", "sgd_mxnet"}, {"ternary/int4:stochastic", "nag_mxnet"}, {"topk:1%", "sum"}, {"topk:20%", "sgd_torch"},
		{"fp8-e4m3", "adamw_torch"}, {"fp8-e5m2", "rmsprop_torch"}, {"int8:stochastic", "adagrad_torch"}, {"none/int8", "sum"},
		{"none/int4", "sgd_torch"}, {"int8/none", "sum"},
	} {
		if testing.Short() && i > 2 {
			t.Log("-short leaves out the codecs after the first three, which differ in arithmetic alone")
			break
		}
		provider := []string{verbs.ProviderSHM, verbs.ProviderTCP}[i%2]
		t.Run(tc.compress+" "+tc.optimizer+" "+provider, func(t *testing.T) {
			s := momentumSpec(provider)
			s.Compress, s.Optimizer, s.Hyper, s.Jitter = tc.compress, tc.optimizer, nil, time.Millisecond
			c := exchange(t, s).Codecs
			pair, err := codec.ParsePair(tc.compress, true)
			if err != nil || c == nil || c.Names != pair.String() {
				t.Fatalf("codecs %+v, %v", c, err)
			}
			up, down := uint64(0), uint64(0)
			for _, of := range s.Model.Tensors {
				up += pair.Up.TensorBytes(of.Elems(), chunk.DefaultChunkBytes/4)
				down += pair.Down.TensorBytes(of.Elems(), chunk.DefaultChunkBytes/4)
			}
			// A chunk that has no room is sent again.
			again := c.Gradients.Ratio() * float64(s.Bytes()) / float64(up)
			if c.Gradients.Raw < s.Bytes() || math.Abs(again-1) > 0.02 || c.Answers.Bytes != down || c.Answers.Raw != s.Bytes() {
				t.Errorf("%v, want %d and %d bytes", c, up, down)
			}
			if (c.Residual > 0) != (pair.Up.ID != codec.Raw) || (c.Gradients.Distortion > 0) != (pair.Up.ID != codec.Raw) ||
				(c.Answers.Distortion > 0) != (pair.Down.ID != codec.Raw) {
				t.Errorf("%v: want losses of codecs", c)
			}
		})
	}
}

// Plain Go follows the codecs that a controller chooses while the job runs.
func TestAControllersCodecsEqualPlainGo(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		if testing.Short() && provider == verbs.ProviderTCP {
			break
		}
		s := momentumSpec(provider)
		s.Model.Tensors[3].Shape[0] = 30
		s.Compress, s.Iters, s.Jitter = "auto:budget=0.15", 50, 10*time.Millisecond
		if c := exchange(t, s).Codecs; c.Gradients.Ratio() >= 0.25 {
			t.Errorf("over %s: %v: want less than the first codec, int8", provider, c)
		}
	}
}

// Each rack decodes its workers' gradients, and codes the answers to them, whatever crosses between racks or parts.
func TestCodecsOfRacksAndPartsEqualPlainGo(t *testing.T) {
	const meet = "every=2,rule=nesterov,lr=0.7,momentum=0.9"
	for i, tc := range []struct {
		name    string
		cluster racks.Cluster
		change  func(*Spec)
	}{
		{"codecs between racks too", racks.Cluster{Shape: "sharded", Core: "int4:stochastic"}, func(s *Spec) { s.Compress = "int8" }},
		{"codecs in a chain", racks.Cluster{Shape: "chain", Core: "topk:5%"}, func(*Spec) {}},
		{"codecs between racks alone, in mode aggregate", racks.Cluster{Shape: "root", Core: "sign/int4"},
			func(s *Spec) { s.Optimizer, s.Hyper = "sum", nil }},
		{"codecs between racks, and bf16 from workers", racks.Cluster{Shape: "sharded", Core: "int4"},
			func(s *Spec) { s.DType = chunk.BF16 }},
		{"sharded", racks.Cluster{Shape: "sharded"}, func(s *Spec) { s.Compress = "int4/int8" }},
		{"sums in bf16", racks.Cluster{Shape: "sharded", Core: "bf16"}, func(s *Spec) { s.Compress = "topk:5%" }},
		{"sums in mode aggregate", racks.Cluster{Shape: "sharded"},
			func(s *Spec) { s.Compress, s.Optimizer, s.Hyper = "int8", "sum", nil }},
		{"racks that meet", racks.Cluster{Shape: "sharded"}, func(s *Spec) { s.Compress, s.Outer = "sign/none", meet }},
	} {
		if testing.Short() && i > 1 {
			break // the processes do the same with each
		}
		t.Run(tc.name, func(t *testing.T) {
			s := momentumSpec(verbs.ProviderTCP)
			s.Server = serveRacks(t, 3, s.Provider, tc.cluster)
			tc.change(&s)
			exchange(t, s)
		})
	}
}
