package aggregate

// Part is the part of a job that one of several aggregators has, where all workers send each chunk to the one that owns it. The
// zero value is the whole job.
type Part struct {
	Number, Of int // among the aggregators, which have as many lanes each
	// Racks is how many workers are in each rack, in rank order: their gradients are added first. None: all are in one.
	Racks []int
	Pods  int // equal runs of racks, whose sums are added first; 0 or 1: none
}

// Several reports whether there are other parts.
func (p *Part) Several() bool { return p.Of > 1 }

// rackSumBytes is the room for one rack's sum of a chunk: elements of two bytes on the wire have sums of four.
func rackSumBytes(chunkBytes int) int64 { return 2 * int64(chunkBytes) }

// need is the room for the sums of all racks in one lane.
func (p *Part) need(chunkBytes int) int64 {
	if len(p.Racks) < 2 {
		return 0
	}
	return int64(len(p.Racks)) * rackSumBytes(chunkBytes)
}
