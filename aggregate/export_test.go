package aggregate

import "github.com/rackweave/rackweave/aggregate/shard"

// Shards returns the job's shards, by lane.
func (j *Job) Shards() []*shard.Shard { return j.shards }

// Ended reports whether Wait would return at once.
func (c *Capture) Ended() bool { return len(c.ended) == c.left }
