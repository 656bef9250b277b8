// Package reduce decides what becomes of one job's chunks in one lane. It is a pure machine, in the manner of etcd-io/raft: events
// go in ([Machine.Receive], [Machine.Delivered], [Machine.Tick], …), actions come out ([Machine.Actions]), and the caller
// carries them out. The machine does no I/O, knows no clock or queue pair, and never blocks. So its stories are text (testdata), a
// brute-force oracle checks it, and a reducer above the rack ([HandUp]) plugs in as more events and actions.
//
// # Using the machine
//
// One goroutine calls a machine, one event after the other. Between two events it must do the following:
//
//  1. Carry out all of [Machine.Actions], in order. The next event reuses the list, and the payloads of an action's sources
//     ([Machine.MessageOf]) are the workers' again once they are answered: finish the arithmetic before the first answer is posted.
//  2. Post one message to the worker, or to each of them, for every action that answers or notifies. Every one takes an entry of
//     the worker's send queue; call [Machine.Delivered] when messages have arrived.
//  3. Take one of the [Config.Results] buffers if [Action.Buffered] is set, and call [Machine.Freed] when it is free again.
//  4. While [Machine.Waiting], call [Machine.Advance] and [Machine.AdvanceCommit] after these until they do nothing, each time with
//     the actions carried out.
//
// Before [Machine.Receive], [Machine.NextSlot] returns the slot that the message lies in. When there is nothing else to do, call
// [Machine.Tick]: without it a stall lasts for ever.
//
// Some actions ask for an event in return:
//
//	HandUp             Returned when the result is there, or Recalled if the sum is not kept
//	ReachBarrier       AdvanceCommit with met, once every lane of the job has asked
//	Refresh            Refreshed when all racks have the parameters
//	Announce           Admit or LeaveOut, once a policy has decided about the step
//	EndStep            Release, once a policy lets the worker go on
//	Fail               End, which tells the workers that are left
//
// A call that breaks this contract panics: it names what was violated. A worker that breaks the protocol costs its job ([Fail]).
//
// # Folds
//
// A fold is a chunk in progress: at least one worker's gradient has arrived, and it waits for the others. It keeps where each
// gradient lies; when the last one arrives the chunk is complete, and one action sums all of them in rank order, so the order
// of arrival cannot change a bit. One pass at the end reads N gradients and the states, and writes once. To add each gradient on
// arrival would read and write the sum N times. Slots are bounded, so waiting costs no more memory. A complete chunk is optimized
// here, or handed to a reducer above the rack ([Config.Above]).
//
// # Windows and credits
//
// A message holds one slot of its worker's window until it is answered: the answer is the credit. The slot needs no number on
// the wire, because message k lies in the slot that was freed k-th, and both ends know the order of messages and of answers. What
// the machine sends takes an entry of the worker's send queue until [Machine.Delivered] frees it, and some answers take a result
// buffer until [Machine.Freed]. When either is exhausted, complete chunks and answers wait inside the machine ([Machine.Advance]).
//
// # Stalls
//
// Workers may push tensors in different orders, and windows are bounded, so they can fill with chunks that the others cannot
// send. [Machine.Tick] finds such stalls and breaks them (stall.go).
//
// # Steps
//
// In mode stream each gradient is applied when it arrives, or added to the accumulators of its step's set in the set's order
// (sets.go). The step ends with a commit behind its chunks, which is answered when the worker may go on.
package reduce
