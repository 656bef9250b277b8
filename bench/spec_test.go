package bench

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

func TestASpecThatCannotBeDoneSaysWhatToDoInstead(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Spec)
		wants  []string
	}{
		{"no workers", func(s *Spec) { s.Workers = 0 }, []string{"workers is 0", "1 to 1024"}},
		{"too many workers", func(s *Spec) { s.Workers = 1025 }, []string{"workers is 1025", "1 to 1024"}},
		{"no iterations", func(s *Spec) { s.Iters = 0 }, []string{"0 iterations", "1 to 1000000"}},
		{"less than no warm-up", func(s *Spec) { s.Warmup = -1 }, []string{"-1 to warm up", "0 to 1000000"}},
		{"no tensors", func(s *Spec) { s.Model = models.Model{Name: "nothing"} }, []string{`"nothing"`, "no tensors"}},
		{"unknown provider", func(s *Spec) { s.Provider = "smh" }, []string{`"smh"`, "auto, " + strings.Join(verbs.Providers(), ", ")}},
		{"options of no provider", func(s *Spec) { s.ProviderOptions = "gid=3" }, []string{`"gid=3"`, "name the provider"}},
		{"odd chunks", func(s *Spec) { s.ChunkBytes = 5000 }, []string{"chunk size of 5000", "power of two from 4096"}},
		{"negative chunks", func(s *Spec) { s.ChunkBytes = -4096 }, []string{"chunk size of -4096", "power of two from 4096"}},
		{"empty URL", func(s *Spec) { s.Server = "A,,B" }, []string{`server "A,,B"`, "URL 2 of 3 is empty"}},
		{"comma at the end", func(s *Spec) { s.Server = "A," }, []string{`server "A,"`, "URL 2 of 2 is empty"}},
		{"negative jitter", func(s *Spec) { s.Jitter = -time.Second }, []string{"jitter -1s", "0 or more"}},
		{"a replay without times", func(s *Spec) { s.Replay = true }, []string{"odd", "no times", "--compute"}},
		{"a replay without warm-up", func(s *Spec) { s.Replay, s.Warmup, s.Model = true, 0, s.Model.Computing(time.Second) },
			[]string{"0 iterations to warm up", "at least 1"}},
		{"a replay with jitter", func(s *Spec) { s.Replay, s.Jitter, s.Model = true, time.Second, s.Model.Computing(time.Second) },
			[]string{"jitter of 1s", "one of the two"}},
		{"unknown optimizer", func(s *Spec) { s.Optimizer = "adamw" }, []string{`"adamw"`, "did you mean adamw_", "sgd_torch"}},
		{"an optimizer of two phases", func(s *Spec) { s.Optimizer = "lamb" }, []string{"lamb", "use another"}},
		{"unknown policy", func(s *Spec) { s.Policy = "spp:s=3" }, []string{"did you mean ssp"}},
		{"unknown parameter of a policy", func(s *Spec) { s.Policy = "ssp:z=3" }, []string{"did you mean s?"}},
		{"negative bound", func(s *Spec) { s.Policy = "ssp:s=-1" }, []string{"use 0 to"}},
		{"absurd bound", func(s *Spec) { s.Policy = "ssp:s=1e30" }, []string{"use 0 to"}},
		{"bounds exchanged", func(s *Spec) { s.Policy = "lagtuner:sl=5,su=2" }, []string{"exchange them"}},
		{"a set of more than all", func(s *Spec) { s.Policy = "k-bsp:k=99" }, []string{"k=99", "use 1 to"}},
		{"a policy without an optimizer", func(s *Spec) { s.Policy, s.Optimizer, s.Hyper = "asp", "sum", nil },
			[]string{"name an optimizer"}},
		{"unknown codec", func(s *Spec) { s.Compress = "int3" }, []string{`"int3"`, "use one of none, int8, int4"}},
		{"answers without their values", func(s *Spec) { s.Compress = "int8/sign" }, []string{`"int8/sign"`, "use none, int8, int4"}},
		{"coded answers of workers out of step", func(s *Spec) { s.Compress, s.Policy, s.Verify = "int8/int8", "asp", false },
			[]string{`"int8/int8"`, "use int8/none"}},
		{"codecs of short elements", func(s *Spec) { s.Compress, s.DType = "int8", chunk.BF16 },
			[]string{"int8/int8 and bf16", "codecs shorten f32"}},
		{"a policy that is verified", func(s *Spec) { s.Policy, s.Verify = "asp", true }, []string{"which worker comes first"}},
		{"unknown hyper-parameter", func(s *Spec) { s.Hyper = map[string]float64{"lrr": 1} }, []string{`"lrr"`, "use lr, wd"}},
		{"hyper-parameter out of range", func(s *Spec) { s.Hyper = map[string]float64{"lr": math.NaN()} },
			[]string{"lr is NaN", "use a number"}},
		{"more than memory", func(s *Spec) { s.Model.Tensors[0].Shape = []int{1 << 40} },
			[]string{"of parameters", "available", "smaller model or fewer workers"}},
		{"more than memory for its workers", func(s *Spec) { s.Model.Tensors[0].Shape, s.Workers = []int{64 << 20}, 1024 },
			[]string{"1024 workers", "available"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := momentumSpec("auto")
			tc.change(&s)
			err := s.Check()
			if err == nil {
				t.Fatalf("%+v is no error", s)
			}
			mentions(t, err.Error(), tc.wants...)
			// What is available may change from one to the other.
			text, _, _ := strings.Cut(err.Error(), "which has")
			if _, runErr := testRunner(t).Run(t.Context(), s); runErr == nil || !strings.HasPrefix(runErr.Error(), text) {
				t.Errorf("Run says %v, Check %v", runErr, err)
			}
		})
	}
}

func TestASpecIsCompletedWithDefaults(t *testing.T) {
	s := momentumSpec("auto")
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if s.ChunkBytes != chunk.DefaultChunkBytes || s.Steps() != 4 || s.Bytes() != 4*s.Model.Params() {
		t.Errorf("chunks of %d, %d steps, %d bytes", s.ChunkBytes, s.Steps(), s.Bytes())
	}
}

func TestEqualErrorsOfWorkersAreToldOnce(t *testing.T) {
	refused, killed := errors.New("refused"), errors.New("signal: killed")
	err := workerErrors([]error{refused, nil, killed, refused})
	if want := "workers 0, 3: refused\nworker 2: signal: killed"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if !errors.Is(err, killed) || !errors.Is(err, refused) {
		t.Errorf("%v hides its causes", err)
	}
	if err := workerErrors(make([]error, 3)); err != nil {
		t.Errorf("no errors are %v", err)
	}
}

func TestEveryBitCountsInAChecksum(t *testing.T) {
	nan := float32(math.NaN())
	of := func(tensors ...[]float32) string {
		var digests []uint64
		for _, x := range tensors {
			digests = append(digests, digest(x))
		}
		return checksum(digests)
	}
	same := of([]float32{1, 2}, []float32{0, nan})
	if other := of([]float32{1, 2}, []float32{0, nan}); other != same {
		t.Errorf("equal values have checksums %s and %s", same, other)
	}
	for _, other := range []string{
		of([]float32{1, math.Nextafter32(2, 3)}, []float32{0, nan}), of([]float32{1, 2}, []float32{float32(math.Copysign(0, -1)), nan}),
		of([]float32{0, nan}, []float32{1, 2}), of([]float32{1, 2, 0, nan}), of([]float32{2, 1}, []float32{0, nan}),
	} {
		if other == same {
			t.Errorf("other values have checksum %s", same)
		}
	}
}
