package reduce

import "github.com/rackweave/rackweave/chunk"

// Verdict is what a gate decides of a gradient.
type Verdict uint8

// The verdicts.
const (
	Join   Verdict = iota // it belongs to the chunk's fold
	Refuse                // the worker broke the protocol
)

// Gate is where a synchronization policy decides whether a worker's gradient of one epoch may join a chunk that has finished
// another. Epochs count modulo 128 (chunk.EpochMask).
type Gate func(worker int, finished, got uint8) Verdict

// Inner reports whether the next step of a chunk stays in the rack, although there is a reducer above it.
type Inner func(index uint32) bool

// Lockstep is the gate of bulk-synchronous training: every worker pushes the epoch after the one that the chunk has finished.
func Lockstep(_ int, finished, got uint8) Verdict {
	if got == (finished+1)&chunk.EpochMask {
		return Join
	}
	return Refuse
}
