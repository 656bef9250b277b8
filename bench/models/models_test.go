package models

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rackweave/rackweave/chunk"
)

// Where each figure was published, beside it. Tensors are what the named implementation's parameter list counts.
func TestTotalsAreThePublishedOnes(t *testing.T) {
	want := []struct {
		name    string
		tensors int
		params  uint64
	}{
		{"alexnet", 16, 61_100_840},                       // num_params of torchvision's AlexNet_Weights
		{"vgg16", 32, 138_357_544},                        // VGG16_Weights
		{"vgg19", 38, 143_667_240},                        // VGG19_Weights
		{"googlenet", 173, 6_624_904},                     // GoogLeNet_Weights
		{"inception-v3", 284, 27_161_264 - auxiliaryHead}, // Inception_V3_Weights counts the head: 23,834,568 without
		{"resnet50", 161, 25_557_032},                     // ResNet50_Weights
		{"resnet269", 814, 102_065_832 + 3 + 3},           // imgclsmob's preresnet269b, which does not normalise its input
		{"bert-large", 391, 335_141_888},                  // KerasNLP's bert_large_en_uncased
		{"gpt2-xl", 580, 1_557_611_200},                   // KerasNLP's gpt2_extra_large_en
	}
	var names []string
	for _, w := range want {
		names = append(names, w.name)
		m, err := Get(w.name)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Tensors) != w.tensors || m.Params() != w.params {
			t.Errorf("%s: %d parameters in %d tensors, want %d in %d", w.name, m.Params(), len(m.Tensors), w.params, w.tensors)
		}
		if m.Name != w.name || m.Source == "" {
			t.Errorf("%s: name %q, source %q", w.name, m.Name, m.Source)
		}
	}
	if !slices.Equal(Names(), names) {
		t.Errorf("Names() = %v", Names())
	}
}

// A 1x1 convolution, a 5x5 one, each normalised, and a fully connected layer.
const auxiliaryHead = 768*128 + 2*128 + 128*768*25 + 2*768 + 768*1000 + 1000

func TestModelsCanBePlanned(t *testing.T) {
	for _, name := range Names() {
		m, _ := Get(name)
		p, err := chunk.NewPlan(chunk.Config{Lanes: []chunk.Lane{{NIC: 0, Core: 0}, {NIC: 0, Core: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Add(m.Chunkable(chunk.BF16)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		e0, b0 := p.LaneLoad(0)
		e1, b1 := p.LaneLoad(1)
		if e0+e1 != m.Params() || b0+b1 != 2*m.Params() {
			t.Errorf("%s: planned %d elements, %d bytes of %d parameters", name, e0+e1, b0+b1, m.Params())
		}
	}
}

// TestGolden shows names and shapes: "shapes NAME [from=SUBSTRING] [n=N]".
func TestGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/shapes.txt", func(t *testing.T, d *datadriven.TestData) string {
		m, err := Get(d.CmdArgs[0].Key)
		if err != nil {
			return err.Error() + "\n"
		}
		var from string
		n := len(m.Tensors)
		d.MaybeScanArgs(t, "from", &from)
		d.MaybeScanArgs(t, "n", &n)
		first := slices.IndexFunc(m.Tensors, func(ts Tensor) bool { return strings.Contains(ts.Name, from) })
		var b strings.Builder
		for _, ts := range m.Tensors[first:min(first+n, len(m.Tensors))] {
			fmt.Fprintf(&b, "%s %v\n", ts.Name, ts.Shape)
		}
		return b.String()
	})
}

func TestUnknownModelSuggestsTheNearest(t *testing.T) {
	for name, near := range map[string]string{
		"resnet-50": "resnet50", "VGG16": "vgg16", "bert": "bert-large", "inceptionv3": "inception-v3",
	} {
		_, err := Get(name)
		want := fmt.Sprintf("unknown model %q: did you mean %s? known are alexnet, vgg16, vgg19, ", name, near)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Get(%q): %v", name, err)
		}
	}
}

// The work by which a published time is divided is what papers say of a forward pass, in billions of multiplications.
func TestTimesAreDividedByWork(t *testing.T) {
	for name, want := range map[string]float64{
		"alexnet": 0.71, "vgg19": 19.6, "googlenet": 1.5, "inception-v3": 5.7, "resnet50": 4.1,
	} {
		for _, b := range builtins {
			if b.name != name {
				continue
			}
			var to builder
			b.build(&to)
			var got float64
			for _, w := range to.work {
				got += w / 1e9
			}
			if got < 0.94*want || got > 1.06*want {
				t.Errorf("%s: %.2f billion multiplications, published are %.2f", name, got, want)
			}
		}
	}
}

func TestComputingKeepsTheWholeTime(t *testing.T) {
	const second = time.Second
	bytes, err := FromBytes("1MB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	vgg, err := Get("vgg19")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Model{bytes.Computing(second), vgg.Computing(second)} {
		var sum time.Duration
		for _, ts := range m.Tensors {
			sum += ts.Forward + ts.Backward
		}
		if m.Compute.Time != second || (second-sum).Abs() > time.Microsecond {
			t.Errorf("%s: layers of %v in all, %v announced, expected 1s", m.Name, sum, m.Compute.Time)
		}
	}
	if vgg.Compute.Time != 268*time.Millisecond || vgg.Tensors[0].Backward > 10*time.Millisecond {
		t.Errorf("Computing changed the model it was asked of: %v", vgg.Compute)
	}
}
