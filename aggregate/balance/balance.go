// Package balance decides between which of a job's lanes chunks move (balance.go), chooses the chunks and records where they are
// (placement.go). It is pure.
//
// A chunk's home is the lane and the index that the plan gave it. The index in the other lane of a chunk that
// has moved names its home ([chunk.Moved]), so that no two ends have to agree on a table.
//
// When lanes stay uneven for seconds, because jobs ended or some push more often, chunks move from the busiest lane to the idlest
// of the same NIC and node. [Balancer] decides by the bytes that lanes moved. Package shard carries a move out between two
// answers.
package balance

const (
	balanceAfter = 3       // windows in a row in which the same two lanes are uneven
	settleFor    = 2       // windows after a move, in which it takes effect
	unevenBy     = 8       // two lanes are uneven if they differ by more than 1/unevenBy of the busier one's bytes
	leastLoad    = 1 << 20 // bytes of a window, below which a lane counts as idle
)

// Load is one job's traffic in one lane during a window.
type Load struct {
	Bytes  uint64 // received and sent
	Chunks int    // there now
}

// Shift is a decision to move a number of a job's chunks from one lane to another.
type Shift struct{ Job, From, To, Chunks int }

// Balancer decides the shifts between the lanes of one group, by windows of equal length.
type Balancer struct {
	from, to int
	uneven   int // windows in a row
}

// Decide takes a window's loads, by lane and job, and returns a shift. ok is false if no chunk should move.
func (b *Balancer) Decide(lanes [][]Load) (s Shift, ok bool) {
	totals := make([]uint64, len(lanes))
	from, to := 0, 0
	for i, jobs := range lanes {
		for _, l := range jobs {
			totals[i] += l.Bytes
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
		// A chunk carries its part of the job's bytes. Half of the gap makes the two lanes even.
		if n := chunksFor(l, gap/2); n > 0 && l.Bytes > most {
			s, most = Shift{job, from, to, n}, l.Bytes
		}
	}
	if most == 0 {
		return s, false // a chunk is larger than half of the gap
	}
	b.uneven = -settleFor
	return s, true
}

// chunksFor returns the number of a job's chunks in a lane that carry at most so many bytes.
func chunksFor(l Load, bytes uint64) int {
	if l.Bytes == 0 {
		return 0
	}
	return min(int(float64(l.Chunks)*float64(bytes)/float64(l.Bytes)), l.Chunks)
}
