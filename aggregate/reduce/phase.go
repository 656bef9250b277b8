package reduce

import "github.com/rackweave/rackweave/chunk"

// Phase is how far the commit of a two-phase step is in one lane. The job's lanes pass the two barriers together.
type Phase uint8

// The phases of a commit.
const (
	Collecting Phase = iota // waits for every worker's commit
	AwaitNorms              // waits until every lane has them all: then the partial norms of the whole model are there
	Applying                // updates this lane's chunks; a rule that needs norms only works out the step and its norms
	AwaitTrust              // waits until every lane has its norms
	Scaling                 // scales the step by each tensor's trust ratio
	Refreshing              // waits until all racks have the parameters
	Answering               // waits for room to answer the workers
)

func (p Phase) String() string {
	return [...]string{"collecting", "await-norms", "applying", "await-trust", "scaling", "refreshing", "answering"}[p]
}

type commit struct {
	phase Phase
	epoch uint8
	held  []Held // by worker
	has   []bool
	first chunk.TensorRecord // what all must send
	next  uint32             // the chunk to go on with
}

func (c *commit) arrived() (n int) {
	for _, has := range c.has {
		if has {
			n++
		}
	}
	return n
}
