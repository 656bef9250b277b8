// Package chunk cuts a model into chunks and places them on lanes. It has the codecs of the immediate and of control records.
//
// A [Plan] is a value, computed with integers only: the same lanes and tensors give the same plan on every machine, and [Plan.Hash]
// lets two ends check that. It only grows: [Plan.Add] never moves placed chunks, and the plan does not depend on how its tensors
// were split into batches. One goroutine at a time may add; any number may read while none adds.
//
// A lane is a (NIC, core) pair. The core owns the lane's chunks for the life of the job. The queue pair of a message names its
// lane, so the 32-bit immediate ([Pack]) carries only the operation, the epoch and the chunk's index within the lane. A control
// record ([TensorRecord]) is the payload of a message to each of a tensor's lanes.
package chunk
