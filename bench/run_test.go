package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// oddModel is a MB in tensors whose sizes fit nothing.
func oddModel() models.Model {
	return models.Model{Name: "odd", Tensors: []models.Tensor{
		{Name: "scalar", Shape: []int{}},
		{Name: "conv", Shape: []int{64, 3, 7, 7}},
		{Name: "three", Shape: []int{3}},
		{Name: "fc", Shape: []int{250, 1001}},
		{Name: "bias", Shape: []int{1001}},
	}}
}

func momentumSpec(provider string) Spec {
	return Spec{
		Workers: 3, Provider: provider, Model: oddModel(), DType: chunk.F32, Optimizer: "sgd_torch",
		Hyper: map[string]float64{"lr": 0.1, "momentum": 0.9, "wd": 1e-4}, Iters: 3, Warmup: 1, Verify: true, Seed: 7,
	}
}

// exchange runs a spec and fails the test unless plain Go agrees with every bit of every worker's result.
func exchange(t *testing.T, s Spec) report.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := testRunner(t).Run(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if !res.Verified || res.Wrong != 0 || res.Checksum != res.Reference {
		t.Errorf("verified %v, %d wrong, checksum %s, plain Go %s", res.Verified, res.Wrong, res.Checksum, res.Reference)
	}
	if res.TimeUS.Mean <= 0 || res.AlgBW <= 0 || len(res.Goodput) != s.Workers {
		t.Errorf("time %+v, algbw %v, goodput %v: want measurements", res.TimeUS, res.AlgBW, res.Goodput)
	}
	return res
}

// The same gradients give the same bits whatever carries them, whenever they come, and however they are cut.
func TestTheResultDoesNotDependOnTransportTimingOrChunks(t *testing.T) {
	checksum := ""
	for _, tc := range []struct {
		name   string
		change func(*Spec)
	}{
		{"shm", func(s *Spec) { s.Provider = verbs.ProviderSHM }},
		{"shm, workers out of step", func(s *Spec) { s.Provider, s.Jitter = verbs.ProviderSHM, 20*time.Millisecond }},
		{"shm, registered memory", func(s *Spec) { s.Provider, s.Arena = verbs.ProviderSHM, true }},
		{"tcp", func(s *Spec) { s.Provider = verbs.ProviderTCP }},
		{"tcp, workers out of step", func(s *Spec) { s.Provider, s.Jitter = verbs.ProviderTCP, 20*time.Millisecond }},
		{"tcp, small chunks", func(s *Spec) { s.Provider, s.ChunkBytes = verbs.ProviderTCP, 4096 }},
		{"the fastest", func(*Spec) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := momentumSpec("auto")
			tc.change(&s)
			res := exchange(t, s)
			if s.Provider != "auto" && res.Provider != s.Provider {
				t.Errorf("provider %s, want %s", res.Provider, s.Provider)
			}
			if checksum == "" {
				checksum = res.Checksum
			}
			if res.Checksum != checksum {
				t.Errorf("checksum %s, want %s as over %s", res.Checksum, checksum, verbs.ProviderSHM)
			}
		})
	}
}

func TestEveryWireTypeAndModeEqualsPlainGo(t *testing.T) {
	for _, tc := range []struct {
		name, optimizer string
		dtype           chunk.DType
	}{
		{"sum", "sum", chunk.F32},
		{"sum in bf16", "sum", chunk.BF16},
		{"adamw over f16", "adamw_torch", chunk.F16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := momentumSpec(verbs.ProviderSHM)
			s.Optimizer, s.Hyper, s.DType = tc.optimizer, nil, tc.dtype
			exchange(t, s)
		})
	}
}

func TestAWorkerWithOtherResultsIsNamed(t *testing.T) {
	s := momentumSpec(verbs.ProviderSHM)
	good, err := reference(t.Context(), &s, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(good[1])
	bad[1]++
	var log strings.Builder
	var res report.Result
	if err := (&Runner{Log: &log}).verify(t.Context(), &s, []workerReport{{Digests: good[0]}, {Digests: bad}}, &res); err != nil {
		t.Fatal(err)
	}
	if !res.Verified || res.Wrong != s.Model.Tensors[1].Elems() || res.Reference != checksum(good[0]) ||
		log.String() != "worker 1: tensor conv is not plain Go's\n" {
		t.Errorf("%+v, %q", res, log.String())
	}
}

// Another seed gives other gradients, so that the checksums above could differ.
func TestTheChecksumIsOfTheGradients(t *testing.T) {
	s := momentumSpec(verbs.ProviderSHM)
	first := exchange(t, s).Checksum
	s.Seed++
	if second := exchange(t, s).Checksum; first == second {
		t.Errorf("seeds 7 and 8 both give checksum %s", first)
	}
}

func TestAComparisonNamesTheCodecs(t *testing.T) {
	for names, want := range map[string]string{"none": "arenas", "int8/none": "arenas, codecs int8/none"} {
		reports := []workerReport{{TimesUS: []float64{1}, Digests: []uint64{1}, Codecs: &report.Codecs{Names: names}}}
		res, err := Times(summarise(&Spec{Workers: 1, Iters: 1, Arena: true}, reports), nil)
		if err != nil || res.Setting != want {
			t.Errorf("setting %q, %v, want %q", res.Setting, err, want)
		}
	}
}

func TestADifferenceThatAPolicyAllowsIsNamedSo(t *testing.T) {
	for policy, want := range map[string]string{
		"": "differs between workers", "ssp:s=3": "differs between workers, as it may under policy ssp:s=3",
	} {
		reports := []workerReport{{TimesUS: []float64{1}, Digests: []uint64{1}}, {TimesUS: []float64{1}, Digests: []uint64{2}}}
		if got := summarise(&Spec{Workers: 2, Iters: 1, Policy: policy}, reports).Checksum; got != want {
			t.Errorf("policy %q: checksum %q, want %q", policy, got, want)
		}
	}
}
