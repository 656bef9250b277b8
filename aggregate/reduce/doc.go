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
//	MergeRows          RowsMerged, before any other event; above the rack also RowsReturned
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
// # Rows
//
// The gradients of a sparse tensor travel as one stream of messages per worker, step and lane, whose ranges of rows follow each
// other without gaps. Rows are numbered among those of the tensor in the lane, and a message has the index of the tensor's first
// chunk. Every worker sends a stream, even if it lists no row, so the rows that all of them cover are complete: they are merged,
// row by row in rank order, as far as the first message ends ([MergeRows]). A message is acknowledged when all its rows are merged.
//
// A worker that wants the results fetches them in blocks, which hold the merged rows in order. A block takes a result buffer from
// its first row until every worker that wants it has fetched it, and all blocks together take at most half of the buffers. The
// block that ends at the last row is the last. Where the workers' memory is mapped ([Config.Maps]) a block begins when each of
// them has a fetch for it, so that merges write it there. A worker fetches until it has the last block and an answer to every
// fetch, and only then begins its next stream. In mode two-phase rows are accumulated, and the chunks' [Apply] updates them. In
// mode stream each message is merged alone ([MergeOne]). In both, workers pull rows ([PullRows]) and fetch nothing.
//
// Below other racks ([Config.Above]) a merge only sums, into a block that goes up when it is full or ends at the last row. Merges
// wait until it is taken there, and the results come down in blocks ([Machine.RowsReturned]), which workers fetch.
// A message is acknowledged when its rows are in the block, because the rack keeps that until the job ends, but a worker's last one
// only with the last results, so that a worker whose pushes are answered may pull what they changed.
//
// A worker keeps two slots for each sparse tensor in the lane, and by reference two staging buffers: for a gradient and for a
// fetch. Chunks, and the further messages of streams, share the others. So streams wait in no circle, in whatever order workers
// begin:
//
//   - A merge waits for messages with its first row. Each worker that has begun the stream sends them in order, and has a slot
//     for the one that is missing, because messages before it are merged and answered.
//   - A merge waits for a block if none is open. Every block will be fetched: no row is merged before all workers have begun the
//     stream, and from then on a worker that wants the results has a slot for a fetch until it has the last block. An open block
//     fills without another buffer, or ends with the stream.
//   - Fetches wait for blocks and room, and not for gradients. Answers wait for room, and no merge waits for an answer.
//   - Chunks find half of the result buffers, and if there is only one, wait for fetches, which do not wait for chunks. In stalls
//     the slots that a worker keeps count as taken.
//
// # Steps
//
// In mode stream each gradient is applied when it arrives, or added to the accumulators of its step's set in the set's order
// (sets.go). The step ends with a commit behind its chunks, which is answered when the worker may go on.
package reduce
