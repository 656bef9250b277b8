package learn

import (
	"context"
	"math/rand/v2"
	"testing"
)

func trainCoded(t *testing.T, way string, skewed bool) Outcome {
	t.Helper()
	c, err := (&coding{skewed: skewed}).of(way)
	if err != nil {
		t.Fatal(err)
	}
	s := Setting{LR: codedRate, Momentum: 0.9, Batch: batchSize, Epochs: 20, Cluster: even, Seed: 1, Coding: c}
	o, err := Run(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Images that every worker has alike hide a codec's bias; those of few digits do not.
func TestSkewedDigitsShowWhatFeedbackIsFor(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for minutes under the race detector; run without -short")
	}
	f32 := trainCoded(t, "none", true)
	if f32.Bits != 32 || f32.Accuracy < 0.94 {
		t.Fatalf("f32 sends %v bits, and recognises %v", f32.Bits, f32.Accuracy)
	}
	for way, want := range map[string]struct {
		bits   float64
		within float64 // of f32's accuracy. If negative, it must be worse than that
	}{
		"int8": {8.25, 0.01}, "int4": {4.25, 0.01}, "topk:10%": {4.4, 0.02}, "sign": {1.25, 0.04},
		"sign" + noFeedback: {1.25, -0.03}, "topk:1%" + noFeedback: {0.66, -0.05},
	} {
		o := trainCoded(t, way, true)
		lost := f32.Accuracy - o.Accuracy
		if o.Bits > want.bits || want.within > 0 && lost > want.within || want.within < 0 && lost < -want.within {
			t.Errorf("%s: %.2f bits, want at most %.2f; accuracy %.3f, f32's %.3f", way, o.Bits, want.bits, o.Accuracy, f32.Accuracy)
		}
	}
}

// Raw payloads train as a loop does that knows no payloads.
func TestRawPayloadsAreTheMeanOfTheGradients(t *testing.T) {
	s := Setting{LR: codedRate, Momentum: 0.9, Batch: batchSize, Epochs: 1, Cluster: even, Seed: 1, Coding: &coding{feedback: true}}
	got, err := Run(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	plain := &training{Setting: s, chance: rand.New(rand.NewPCG(1, 2)), params: newNetwork(rand.New(rand.NewPCG(1, 1)))}
	plain.train, plain.test = split(0)
	shards := plain.shards(4)
	for range got.Updates {
		var sum, g network
		for w := range shards {
			plain.params.gradient(&g, plain.drawFrom(&shards[w], batchSize/4))
			for i, v := range g {
				sum[i] += v
			}
		}
		for i, v := range sum {
			plain.speed[i] = 0.9*plain.speed[i] + v/4
			plain.params[i] -= codedRate * plain.speed[i]
		}
	}
	if want := plain.finish(); got.Loss != want.Loss || got.Updates != 10 {
		t.Errorf("loss %v after %d updates, want %v after 10", got.Loss, got.Updates, want.Loss)
	}
}
