// Package chunk cuts a model into chunks and places them on lanes. It has the codecs of the immediate and of control records.
//
// A [Plan] is a value, computed with integers only. Equal lanes and tensors give equal plans on every machine, and [Plan.Hash] lets
// two ends check that. A plan only grows: [Plan.Add] never moves placed chunks, and the plan does not depend on the division of its
// tensors into batches. One goroutine at a time may add. Any number may read while none adds.
//
// A lane is a (NIC, core) pair. The core owns the lane's chunks. The queue pair of a message identifies its lane, so the 32-bit
// immediate ([Pack]) carries only the operation, the epoch and the chunk's index within the lane. A control record ([TensorRecord])
// is the payload of a message to each of a tensor's lanes.
//
// Hyper-parameters travel when they change: a tensor's control record carries them, and where its answers go, ahead of its first
// chunk. All workers must send the same.
//
// A worker's lanes may lie at several aggregators, in shape flat or because one cannot hold the model. Then the plan is of the
// lanes of all of them ([Spread]). Each aggregator computes it for itself and serves its own lanes, and a worker compares the
// plan's hash with everyone's, so the aggregators need not talk to each other.
//
// The plan of a new job begins with what other jobs have placed ([Lane.Load]), so its chunks go to the lanes with most room.
// Workers do not know that, and follow the aggregator's placement ([Plan.Follow]).
package chunk
