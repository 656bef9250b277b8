// Package chunk cuts a model into chunks and places them on lanes, and holds the codecs of what names a chunk on the wire.
//
// A [Plan] is a value: no goroutine, clock, socket or global, integers only, so that the same lanes and tensors give the same
// plan on every machine; [Plan.Hash] lets two ends check that. It only grows: [Plan.Add] never moves what is placed, and the
// plan does not depend on how its tensors were split into batches. One goroutine at a time may add; once nobody adds, any
// number may read.
//
// A lane is a (NIC, core) pair. The core owns the lane's chunks for the life of the job, and the queue pair that a message
// arrives on says which lane is meant; the 32-bit immediate ([Pack]) then needs to carry no more than the operation, the epoch
// and the chunk's dense index within its lane. A control record ([TensorRecord]) goes to a tensor's lanes as a payload.
package chunk
