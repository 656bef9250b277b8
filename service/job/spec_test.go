package job

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

func TestAJobIsMadeOfItsRulesDefaultsAndWhatIsAskedFor(t *testing.T) {
	s, err := parseSpec(&api.JoinRequest{Workers: 3, Mode: "eager", Optimizer: "adamw_torch",
		Hyper: map[string]float64{"lr": 0.5, "beta1": 0.8}})
	if err != nil {
		t.Fatal(err)
	}
	h := optim.AdamWTorch.Defaults()
	h.LR, h.Beta1 = 0.5, 0.8
	want := Spec{3, aggregate.Eager, optim.AdamWTorch, optim.AdamWTorch.Rounded(h), chunk.DefaultChunkBytes, policy.Spec{}, 3, 0, 0,
		outer.Optimizer{}, codec.Pair{}, OneRack{}}
	if s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

func TestARefusedPartIsNamedWithWhatWouldDo(t *testing.T) {
	for _, tc := range []struct {
		part, parts uint32
		want        string
	}{
		{0, 1 << 31, "2147483648 parts: use at most 1024"},
		{0, 1025, "1025 parts: use at most 1024"},
		{2, 2, "part 2 of 2: use 0 to 1"},
		{1, 0, "part 1 of 0: use 0 to 0"},
	} {
		_, err := parseSpec(&api.JoinRequest{Workers: 1, Part: tc.part, Parts: tc.parts})
		if err == nil || err.Error() != tc.want {
			t.Errorf("part %d of %d: %v, want %s", tc.part, tc.parts, err, tc.want)
		}
	}
}

func TestCandidatesThatAControllerCannotTakeAreRefusedAtTheJoin(t *testing.T) {
	for codecs, want := range map[string]string{
		"int8+int4+int8":                      "candidate int8 is named twice",
		"topk:1%+topk:0.01":                   "candidate topk:0.01 is named twice",
		strings.Repeat("int8+", 300) + "int4": "names 301 candidates: name at most 32",
	} {
		_, err := parseSpec(&api.JoinRequest{Workers: 1, Compress: "auto:codecs=" + codecs})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", codecs, err, want)
		}
	}
}

// tensorsOf draws declarations from so few values that two draws are often equal.
func tensorsOf(t *rapid.T, label string) []declared {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) declared {
		shape := rapid.SliceOfN(rapid.Uint64Range(1, 2), 0, 2).Draw(t, "shape")
		return declared{
			chunk.Tensor{Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"), Width: rapid.Uint32Range(0, 1).Draw(t, "width"),
				DType: rapid.SampledFrom([]chunk.DType{chunk.F32, chunk.BF16}).Draw(t, "dtype")},
			aggregate.TensorSpec{
				LRMult: float64(rapid.IntRange(1, 2).Draw(t, "lr")), WDMult: 1, Standard: rapid.Bool().Draw(t, "standard"),
			}, shape,
		}
	}), 0, 2).Draw(t, label)
}

func TestAMismatchIsFoundExactlyWhereThereIsOne(t *testing.T) {
	text := func(ds []declared) string {
		var b strings.Builder
		for _, d := range ds {
			b.WriteString(d.Name)
			for _, n := range d.shape {
				b.WriteByte(byte('0' + n))
			}
			b.WriteByte(byte(d.DType))
			b.WriteByte(byte(d.LRMult))
			fmt.Fprint(&b, d.Width, d.Standard, "|")
		}
		return b.String()
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := tensorsOf(t, "a"), tensorsOf(t, "b")
		err := mismatch(0, a, 1, b)
		if same := text(a) == text(b); same != (err == nil) {
			t.Fatalf("%v and %v: %v", a, b, err)
		}
		if back := mismatch(1, b, 0, a); (back == nil) != (err == nil) {
			t.Fatalf("one way %v, the other %v", err, back)
		}
	})
}

func TestNamesThatCouldBePathsOrLabelsAreRefused(t *testing.T) {
	for name, ok := range map[string]bool{
		"job": true, "resnet50-v1.5_a": true, "0": true, strings.Repeat("x", 64): true,
		"": false, ".": false, "..": false, "a/b": false, "a b": false, "-x": false, "é": false, "a\n": false,
		strings.Repeat("x", 65): false,
	} {
		if err := rpc.CheckName("job", name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func FuzzRequests(f *testing.F) {
	add := func(m proto.Message) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	half := 0.5
	add(&api.JoinRequest{Job: "j", Workers: 2, Mode: "eager", Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 0.1}})
	add(&api.RegisterRequest{Tensors: []*api.Tensor{{Name: "a", Shape: []uint64{3, 1 << 40}, Dtype: "bf16", LrMult: &half}}})
	add(&api.RegisterRequest{Tensors: []*api.Tensor{{Name: "a", Shape: []uint64{30, 2}, Dtype: "f32", Sparse: true, Standard: true}}})
	f.Fuzz(func(t *testing.T, b []byte) {
		var join api.JoinRequest
		if proto.Unmarshal(b, &join) == nil {
			if s, err := parseSpec(&join); err == nil && s.differs(s) != nil {
				t.Errorf("%v differs from itself", s)
			}
		}
		var register api.RegisterRequest
		if proto.Unmarshal(b, &register) == nil {
			ts, err := parseTensors(register.Tensors)
			if err != nil {
				return
			}
			if mismatch(0, ts, 1, ts) != nil {
				t.Errorf("%v differ from themselves", ts)
			}
			for _, d := range ts {
				if d.Elems > 1<<50 || d.Width > 0 && d.Elems%uint64(d.Width) != 0 {
					t.Errorf("%v", d)
				}
			}
		}
	})
}
