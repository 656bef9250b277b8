package ratecontrol

import (
	"math"
	"slices"
)

const (
	sampleChunks = 8    // of a sample, at least
	smooth       = 0.25 // weight of a new sample
	steepest     = 4    // a sample counts as no slower than the estimate divided by this
)

// link estimates the bandwidth of a worker's connections, and for how long the worker computes.
type link struct {
	live     bool
	accepted uint32 // the last version
	// fast is the moving average of the samples, in bytes per second: of the time that a byte takes, because a step waits for bytes.
	// The average of rates would be too high where the rate changes, and a false sample could raise it without bound.
	fast float64
	// recent holds the last samples. Their largest bounds fast, which remembers longer.
	recent  [10]float64
	samples int
	// What was acknowledged since the last sample.
	bytes, seconds float64
	chunks         int
	overlap        float64 // seconds in which bytes can travel while the worker computes; 0 until known
}

// acked adds acknowledged bytes. Each chunk costs the hosts perChunk seconds.
func (l *link) acked(bytes, seconds float64, chunks int, perChunk float64) {
	if !(bytes > 0) || !(seconds > 0) || math.IsInf(bytes+seconds, 1) || chunks <= 0 {
		return
	}
	l.bytes, l.seconds, l.chunks = l.bytes+bytes, l.seconds+seconds, l.chunks+chunks
	if l.chunks < sampleChunks {
		return
	}
	spent := l.seconds - float64(float64(l.chunks)*perChunk)
	sample, known := l.bytes/spent, spent >= l.seconds/2
	l.bytes, l.seconds, l.chunks = 0, 0, 0
	if !known {
		return // messages took the time, and the link might carry far more
	}
	if l.samples == 0 {
		l.fast = sample
	}
	sample = max(sample, l.fast/steepest)
	l.fast = 1 / (smooth/sample + (1-smooth)/l.fast)
	l.recent[l.samples%len(l.recent)] = sample
	l.samples++
}

// bandwidth returns the estimate in bytes per second. It is 0 before the first sample.
func (l *link) bandwidth() float64 { return min(l.fast, slices.Max(l.recent[:])) }

// computed adds the seconds of a step, which are 0 if they are not known.
func (l *link) computed(seconds float64) {
	if l.overlap == 0 {
		l.overlap = max(seconds, 0)
	} else if seconds > 0 {
		l.overlap = float64(smooth*seconds) + float64((1-smooth)*l.overlap)
	}
}
