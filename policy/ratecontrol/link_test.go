package ratecontrol

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// sample adds one sample of so many bytes per second.
func (l *link) sample(rate float64) { l.acked(rate/10, 0.1, sampleChunks, 0) }

func TestBandwidthFollowsTheLink(t *testing.T) {
	var l link
	for range 40 {
		l.sample(1e6)
	}
	if b := l.bandwidth(); math.Abs(b-1e6) > 1 {
		t.Errorf("a steady link of 1e6 is estimated at %v", b)
	}
	n := 0
	for ; n <= 20 && l.bandwidth() < 0.9*25e6; n++ {
		l.sample(25e6)
	}
	if n > 20 {
		t.Errorf("25 times the bandwidth took %d samples to see", n)
	}
	for n = 0; n <= 12 && l.bandwidth() > 1.1*1e6; n++ {
		l.sample(1e6)
	}
	if n > 12 {
		t.Errorf("a twenty-fifth of it took %d samples to see", n)
	}
}

func TestSamplesNeedEightChunksAndTheTimeOfTheLink(t *testing.T) {
	var l link
	l.acked(1e6, 1, 7, 0)
	if l.samples != 0 {
		t.Fatal("7 chunks made a sample")
	}
	l.acked(2e6, 1, 1, 0)
	if l.samples != 1 || l.bandwidth() != 1.5e6 {
		t.Fatalf("%d samples, %v", l.samples, l.bandwidth())
	}
	l.acked(1e6, 1, 100, 6e-3)
	if l.samples != 1 {
		t.Fatal("a sample counted whose messages took more than half of the time")
	}
	l.acked(1e6, 1, 100, 5e-3)
	if l.samples != 2 || l.recent[1] != 2e6 {
		t.Fatalf("the time of messages stays in the sample: %v", l.recent[:2])
	}
}

func TestAFalseSampleMovesTheEstimateLittle(t *testing.T) {
	any := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e9), rapid.SampledFrom([]float64{0, math.Inf(1), math.NaN(), 1e300}))
	rapid.Check(t, func(t *rapid.T) {
		var l link
		for range 20 {
			l.sample(1e6)
		}
		for range rapid.IntRange(1, 50).Draw(t, "samples") {
			before := l.bandwidth()
			l.acked(any.Draw(t, "bytes"), any.Draw(t, "seconds"), rapid.IntRange(-1, 100).Draw(t, "chunks"), 1e-6)
			if b := l.bandwidth(); !(b >= before/1.76 && b <= before*1.34) {
				t.Fatalf("%v became %v", before, b)
			}
		}
		for range 120 {
			l.sample(1e6)
		}
		if b := l.bandwidth(); math.Abs(b-1e6) > 1e4 {
			t.Fatalf("after 120 true samples of 1e6 the estimate is %v", b)
		}
	})
}

func TestComputingIsAveragedFromTheFirstStepThatIsKnown(t *testing.T) {
	var l link
	for _, seconds := range []float64{0, -1, 1, 0, 2} {
		l.computed(seconds)
	}
	if l.overlap != 1.25 {
		t.Error(l.overlap)
	}
}
