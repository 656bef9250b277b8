package aggregate

// Lanes of one NIC and one node share the work evenly at first, as plans place bytes. When jobs end, or some push more often than
// others, that changes for good. Then chunks move from the busiest lane to the idlest.
const (
	balanceAfter = 3       // windows in a row in which the same two lanes are uneven
	settleFor    = 2       // windows after a move, in which it takes effect
	unevenBy     = 8       // they are, if their difference is more than one in so many of the busier one's bytes
	leastLoad    = 1 << 20 // bytes of a window, below which a lane counts as idle
)

// load is what a window says of one job in one lane.
type load struct {
	bytes  uint64 // received and sent
	chunks int    // there now
}

// shift is a decision: so many chunks of a job are to move.
type shift struct{ job, from, to, chunks int }

// balancer decides about the lanes of one group, by windows of equal length. It is pure.
type balancer struct {
	from, to int
	uneven   int // windows in a row
}

// decide takes a window's loads, by lane and job.
func (b *balancer) decide(lanes [][]load) (s shift, ok bool) {
	totals := make([]uint64, len(lanes))
	from, to := 0, 0
	for i, jobs := range lanes {
		for _, l := range jobs {
			totals[i] += l.bytes
		}
		if totals[i] > totals[from] {
			from = i
		}
		if totals[i] < totals[to] {
			to = i
		}
	}
	gap := totals[from] - totals[to]
	switch {
	case b.uneven < 0:
		b.uneven++
		return s, false
	case totals[from] < leastLoad || gap*unevenBy <= totals[from]:
		b.uneven = 0
		return s, false
	case b.uneven == 0 || b.from != from || b.to != to:
		b.from, b.to, b.uneven = from, to, 0
	}
	if b.uneven++; b.uneven < balanceAfter {
		return s, false
	}
	most := uint64(0)
	for job, l := range lanes[from] {
		// A chunk is worth its part of the job's bytes; half of the gap makes the two lanes even.
		if n := chunksFor(l, gap/2); n > 0 && l.bytes > most {
			s, most = shift{job, from, to, n}, l.bytes
		}
	}
	if most == 0 {
		return s, false // chunks are too large to make it better
	}
	b.uneven = -settleFor
	return s, true
}

// chunksFor is how many of a job's chunks in a lane move so many bytes, at most.
func chunksFor(l load, bytes uint64) int {
	if l.bytes == 0 {
		return 0
	}
	return min(int(float64(l.chunks)*float64(bytes)/float64(l.bytes)), l.chunks)
}
