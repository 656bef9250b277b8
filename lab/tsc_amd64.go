package lab

import (
	"sync"
	"time"
)

// readTSC reads the processor's time-stamp counter.
func readTSC() uint64

// tscKHz measures the rate of the time-stamp counter, which the emulator passes to its guests unchanged. A guest on a loaded host
// measures it wrong by factors, and its clock is then wrong by as much.
var tscKHz = sync.OnceValue(func() uint64 {
	const span = 50 * time.Millisecond
	start, first := tscNow()
	time.Sleep(span)
	end, last := tscNow()
	return (last - first) * uint64(time.Millisecond) / uint64(end.Sub(start))
})

// tscNow reads the clock and the counter at the same time. It takes the closest of some pairs, because a thread may lose its
// processor between the two.
func tscNow() (at time.Time, count uint64) {
	const tries = 100
	closest := time.Hour
	for range tries {
		before := time.Now()
		c := readTSC()
		after := time.Now()
		if gap := after.Sub(before); gap < closest {
			closest, at, count = gap, before, c
		}
	}
	return at, count
}
