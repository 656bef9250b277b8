// Package uplink reduces one lane's chunks among the aggregators of several racks.
//
// The shard below hands up a chunk when the last gradient of the rack's workers has arrived ([Uplink.HandUp]). The uplink makes
// the rack's sum of it in a buffer of its own, and a pure machine, hierarchy.Reducer, decides the next actions: the parent gets
// the sum, children's sums are added, and the owner makes the result, which travels back down. A result for the rack's workers
// goes back through [Shard]. [Reduction] defines the sums and the results of a job.
//
// The spine is HandUp → makeSum → Reducer.Ready → sendSum here, receiveChunk → Reducer.Sum → combine or makeResult → sendResult at
// the parent, and here receiveChunk → Reducer.Result, whose action Return queues the chunk, and Advance → Machine.Returned, whose
// action the shard carries out by Deliver. Results wait for Advance, because a shard that is carrying out actions of its machine
// must not enter it again.
//
// Words:
//
//   - A parent: the next rack on a chunk's way to its owner. Children: the racks whose sums come here first. Both differ between
//     owners, by the shape (hierarchy/shape.go).
//   - A group: of the racks whose sums are added here, those of one pod. Their sums are added first (hierarchy.Route).
//   - An owner: the rack that makes a chunk's result. A buddy: the rack after it in order, which keeps a copy of its state.
//   - A root: the worker whose values a broadcast takes.
//   - A sum: of this rack's gradients and, once combined, of the children's sums. A note is its trailer.
//   - A total: the sum of all racks in f32, which only an owner's buddy needs.
//   - A result: the owner's answer to all racks, by mode the sum, the parameters or nothing ([Reduction]). Where rounds follow the
//     drift of racks that train apart, the steps to the next round follow it, and notes carry the racks' distances.
//   - A commit: the end of a step of mode two-phase. Its refresh broadcasts parameters from the owners, on the way of a root's
//     values: a note climbs instead of values.
//   - A recall: a child wants its sum back, so that its workers can send what other racks wait for (hierarchy/stall.go).
//   - A window: the slots of a connection; Config.Window is a worker's, peerWindow a rack's.
//   - The core link: the network between the racks.
//
// A receive slot here is this rack's until its answer is posted, so a group's sum may be made in place there. A core type of 16
// bits is allowed only where no rack forwards a sum, and without pods, so that each is rounded once (hierarchy.Topology.CheckOnce).
// So code that forwards sums or adds groups works in f32.
//
// The gradients of a chunk that was handed up stay in the workers' slots until the workers are answered. So a chunk may wait
// here for a buffer, and the uplink never has more chunks than a worker has slots.
//
// There is one connection between the lanes of one number in two racks. An aggregator has a window of slots without numbers at its
// parent, as a worker has at its aggregator. The parent's notice that it has taken the sum frees the slot. The owner sends no such
// notice, and the result frees the slot. The aggregator keeps the sum itself until it has the result, because a NACK may still ask
// for the sum again. wire.go lists the messages. Nobody resumes a connection over a core link: its queue pairs retry for at least
// half a minute, and then the job fails in all racks.
//
// The other racks keep the parameters for pulls, and only the owner keeps optimizer state, except where racks train apart. With
// buddies ([Place.Buddies]) the next rack in order keeps it too: it gets the sum of all racks where others get the result, and
// makes the same update. Copies differ by one change at most, as [store.History] proves. The owner and its buddy also keep
// the state before the last change, so the racks that are left agree on a step that is whole.
//
// The rows of sparse tensors cross in blocks, directly between each rack and their owner, whatever the shape (rows.go). They are
// added by rack, in order. Broadcasts of such a tensor travel by chunk, and so does a refresh, which moves all chunks of a tensor
// that was pushed.
//
// In a two-phase step the racks exchange the norms of the chunks that they own before the update (exchange.go), and owners
// broadcast their parameters after it (refresh.go).
//
// The racks are one operator's. What another rack sends is checked for length, epoch and place in the protocol. The addresses that
// it names are of its own memory.
//
// Only the lane's goroutine uses an uplink, except for its counters.
package uplink
