// Package simrack simulates a whole rack in one process: an aggregator's lanes and C workers over provider sim, on virtual
// time. The seed decides the whole schedule: jobs, workers, tensors, orders of submission, lateness, events of the network and
// faults. Runs of one seed are equal.
//
// The code that ships chooses the paths of workers' connections (client/lanes, client/failover). The schedule determines the
// events of links, and the times at which others are notified of them.
//
// In some schedules, tensors are sparse. Every worker draws the rows that it pushes: none, all, or some, or those of one worker
// alone. It pulls rows in any order, repeated too.
//
// These properties hold in every schedule:
//
//   - Every operation of a job without a fatal fault completes, in bounded virtual time, with the bits that plain Go computes.
//   - After a fatal fault the job's survivors are notified within a second of virtual time after its first notice. Their
//     completed operations are right, and other jobs on the same lanes are not affected.
//   - Pools, slots and queues stay within their bounds ([aggregate.Lane.Audit]), and every chunk is counted once.
//
// A failing seed can be run again:
//
//	go test ./lab/simrack -run TestSchedules -seed=S -v
package simrack
