package job

import (
	"cmp"

	"github.com/rackweave/rackweave/aggregate"
)

// Quota bounds a job. A zero leaves only the machine's bound.
type Quota struct {
	Workers         int
	MemoryBytes     int64 // of all that the job has at the aggregator
	CheckpointBytes int64 // on disk
}

// Policy holds the token of a job and its bounds.
type Policy struct {
	Token  string
	Quota  Quota
	Weight int // of its share of the lanes. If 0, 1
}

func (q Quota) maxWorkers() int {
	return min(cmp.Or(q.Workers, aggregate.MaxWorkers), aggregate.MaxWorkers)
}
