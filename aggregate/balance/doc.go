// Package balance decides which chunks move between a job's lanes, and records where they are. It is pure.
//
// A chunk's home is the lane and the index that the plan gave it. The index in the other lane of a chunk that
// has moved names its home ([chunk.Moved]), so that no two ends have to agree on a table.
//
// When lanes stay uneven for seconds, because jobs ended or some push more often, chunks move from the busiest lane to the idlest
// of the same NIC and node. [Balancer] decides by the bytes that lanes moved. Package shard carries a move out between two
// answers.
package balance
