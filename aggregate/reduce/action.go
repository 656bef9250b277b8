package reduce

import "github.com/rackweave/rackweave/chunk"

// Kind says what an action asks of the lane.
type Kind uint8

// The actions. Those that send take one entry of each addressed worker's send queue.
const (
	// Update sums the sources, runs the update rule, and answers every worker: with the new parameters, or, where the source's
	// operation is a push, with nothing but the immediate.
	Update Kind = iota
	// Sum answers every worker with the sum of the sources.
	Sum
	// Accumulate adds the sum of the sources to the chunk's accumulator and acknowledges every worker's push.
	Accumulate
	// Broadcast makes the root's values the parameters and answers every worker with them.
	Broadcast
	// HandUp sums the sources for the reducer above the rack, or, if Op is a broadcast, takes the root's values where it is one of
	// them. [Machine.Returned] says that the result is there.
	HandUp
	// Deliver answers every worker of a chunk that was handed up with what the reducer above returned.
	Deliver
	// Pull answers one worker with the chunk's parameters.
	Pull
	// UpdateOne runs the update rule with one worker's gradient, and answers it: a pushpull with the new parameters.
	UpdateOne
	// Add adds one worker's gradient to the chunk's accumulator, and acknowledges it.
	Add
	// Drop acknowledges one worker's gradient, which is of no use.
	Drop
	// Announce says that a worker has announced its step, by the control record of the message under way.
	Announce
	// Updated says that the update of the set is made here.
	Updated
	// EndStep says that a worker has ended its step, all of which is applied here.
	EndStep
	// AnswerStep lets a worker begin its next step.
	AnswerStep
	// Configure applies the control record of the message under way to tensor Index. If New, its hyper-parameters are not those
	// that the tensor has.
	Configure
	// Acknowledge answers one worker's control record with nothing but the immediate.
	Acknowledge
	// NACK tells one worker that its gradient of the chunk is not kept any more, so it must send it again.
	NACK
	// Request asks one worker to send the chunk before others.
	Request
	// Abort tells one worker that the job failed; Index is the rank to blame, all ones if none is.
	Abort
	// Fail ends the job: the worker broke the protocol, as Err says.
	Fail
	// Meet tells the job's other lanes that this one has reached the next barrier of the commit.
	Meet
	// Decide works out the step's scale from the norms of all lanes.
	Decide
	// Apply updates the chunks from Index up to End with their accumulated gradients; guests count from the plan's last.
	Apply
	// Scale runs the second pass of a rule that needs norms over the same chunks.
	Scale
	// Refresh gives all racks the parameters that the commit changed. [Machine.Refreshed] says that they have them.
	Refresh
	// AnswerCommit answers every worker's commit.
	AnswerCommit
)

// Message is a message of a worker, as the lane received it.
type Message struct {
	Op    chunk.Op
	Epoch uint8
	Index uint32 // the chunk; control records of tensors: the tensor
	Bytes uint32
	Where Where
	// What a control record carries, nil for other operations, and a checksum of its hyper-parameters that is never 0.
	Record   *chunk.TensorRecord
	HyperSum uint32
}

// Where says where a message's payload lies. Addresses are opaque to the machine.
type Where struct {
	Payload    uint64 // in the aggregator's process
	Source     uint64 // by reference: in the worker's memory; else 0
	SourceRKey uint32 // by reference: the worker's key for Source; else 0
	Staged     bool   // by reference: in one of the worker's staging buffers
}

// Held is a message that holds its slot.
type Held struct {
	Where
	Slot  uint16
	Op    chunk.Op
	Epoch uint8 // the worker's own, that a broadcast is answered with
}

// Action is one thing for the lane to do. Its sources stay readable until the next event.
type Action struct {
	Kind    Kind
	Op      chunk.Op // of the answer
	Epoch   uint8    // of the answer
	Result  bool     // a result buffer is reserved: the lane says Freed when it is free again
	New     bool     // Configure
	Moves   bool     // the chunk moves to lane To before its workers are answered
	To      uint8
	Worker  int32
	Index   uint32 // the chunk, unless the kind says otherwise
	End     uint32
	fold    int32
	Since   int64 // Update, Sum, Accumulate, Deliver: when the chunk's first gradient arrived
	Message Held  // what Pull, UpdateOne, Add, Drop, AnswerStep and Acknowledge answer, and a NACK gives back
	Err     error
}
