// Package simrack simulates a whole rack in one process: an aggregator's lanes and C workers over provider sim, on virtual
// time. The seed decides the whole schedule: jobs, workers, tensors, orders of submission, who is late, what the network does and
// what breaks. The same seed runs the same way every time.
//
// The code that ships decides where workers' connections go (client/lanes, client/failover). The schedule says what happens to
// links, and who learns of it when.
//
// What a schedule must show: every operation of a job that nothing fatal struck completes, in bounded virtual time, with the
// bits that plain Go computes; where something fatal struck, the job's survivors learn of it within a second of virtual time
// after it was noticed, what they had completed is right, and other jobs on the same lanes go on as if nothing had happened;
// pools, slots and queues stay within their bounds all the while ([aggregate.Lane.Audit]), and every chunk is counted once.
//
// A failing seed says how to run it again:
//
//	go test ./lab/simrack -run TestSchedules -seed=S -v
package simrack
