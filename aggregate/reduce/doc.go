// Package reduce decides what becomes of one job's chunks in one lane. It is a pure machine, as etcd-io/raft is one: events
// go in ([Machine.Receive], [Machine.Sent], [Machine.Tick], …), actions come out ([Machine.Actions]), and the lane carries the
// actions out. The machine does no I/O, knows no clock, and never blocks.
//
// # Folds
//
// A fold is a chunk in progress: at least one worker's gradient has arrived, and it waits for the others. It keeps where each
// gradient lies; when the last one arrives the chunk is complete, and one action sums all of them in rank order, so the order
// of arrival cannot change a bit. A complete chunk is optimized here, or handed to a reducer above the rack ([Config.Above]).
//
// # Windows and credits
//
// A message holds one slot of its worker's window until it is answered: the answer is the credit. The slot needs no number on
// the wire, because message k lies in the slot that was freed k-th. What the machine sends takes an entry of the worker's send
// queue until [Machine.Sent] frees it, and some answers take a result buffer until [Machine.Freed]. When either is
// exhausted, complete chunks and answers wait their turn inside the machine ([Machine.Advance]).
//
// # Stalls
//
// Workers may push tensors in different orders, and windows are bounded, so they can fill with chunks that the others cannot
// send. [Machine.Tick] finds such stalls and breaks them (stall.go).
package reduce
