package reduce

import "github.com/rackweave/rackweave/chunk"

// Kind is the kind of an action.
type Kind uint8

// These are the kinds. An action that sends takes one entry of each addressed worker's send queue.
const (
	// Update sums the sources, runs the update rule, and answers every worker with the new parameters. A push is answered with the
	// immediate alone.
	Update Kind = iota
	// Sum answers every worker with the sum of the sources.
	Sum
	// Accumulate adds the sum of the sources to the chunk's accumulator and acknowledges every worker's push.
	Accumulate
	// Broadcast makes the root's values the parameters and answers every worker with them.
	Broadcast
	// HandUp sums the sources for the reducer above the rack. If Op is a broadcast, it takes the root's values where the root is in
	// this rack. [Machine.Returned] reports the result.
	HandUp
	// Deliver answers every worker of a chunk that was handed up with the result of the reducer above.
	Deliver
	// Pull answers one worker with the chunk's parameters.
	Pull
	// UpdateOne runs the update rule with one worker's gradient, and answers it. A pushpull is answered with the new parameters.
	UpdateOne
	// Add adds one worker's gradient to the chunk's accumulator, and acknowledges it.
	Add
	// Drop acknowledges one worker's gradient without applying it.
	Drop
	// Announce reports that a worker has announced its step, by the control record of the message under way.
	Announce
	// Updated reports that this lane has made the update of the set.
	Updated
	// EndStep reports that a worker has ended its step, and that this lane has applied all of it.
	EndStep
	// AnswerStep lets a worker begin its next step.
	AnswerStep
	// Configure applies the control record of the message under way to tensor Index. If New, its hyper-parameters differ from the
	// tensor's.
	Configure
	// Acknowledge answers one worker's control record, or its merged rows, with the immediate alone.
	Acknowledge
	// NACK notifies one worker that its gradient of the chunk was dropped, so that it sends the gradient again.
	NACK
	// Request asks one worker to send the chunk before others.
	Request
	// Abort notifies one worker that the job failed. Index is the rank to blame, or all ones if no worker is to blame.
	Abort
	// Fail ends the job, because the worker broke the protocol. Err names the violation.
	Fail
	// ReachBarrier notifies the job's other lanes that this lane has reached the next barrier of the commit.
	ReachBarrier
	// Decide computes the step's scale from the norms of all lanes.
	Decide
	// Apply updates the chunks from Index up to End with their accumulated gradients, a sparse tensor's by row.
	Apply
	// Scale runs the second pass of a rule that needs norms over the same chunks.
	Scale
	// Refresh gives all racks the parameters that the commit changed. [Machine.Refreshed] reports that they have them.
	Refresh
	// AnswerCommit answers every worker's commit.
	AnswerCommit
	// MergeRows merges the rows Rows.From up to Rows.To of a sparse tensor, in the messages of [Machine.RowsOf], into the parameters,
	// the sum or the accumulator. It is the only action of its event, and [Machine.RowsMerged] reports how far it came. If Block is
	// not negative, the results go into this block, behind those of the merges before. If Buffered, the block is new. Here and in
	// the next kinds Index is the tensor's first chunk.
	MergeRows
	// MergeOne merges one worker's rows into the parameters by themselves, and acknowledges them.
	MergeOne
	// AnswerRows answers one worker's fetch with the next block of results. If Last, no other worker takes the block, and its buffer
	// is free after the answer. If Block is negative, the worker has taken the stream's last block, and gets an empty one.
	AnswerRows
	// PullRows answers one worker with the rows of a sparse tensor that it lists.
	PullRows
)

// Message is a message of a worker, as the lane received it.
type Message struct {
	Op    chunk.Op
	Epoch uint8
	Index uint32 // of the chunk, or of the tensor for its control records
	Bytes uint32
	Where Where
	// Record is the content of a control record, or nil for other operations. HyperSum is a checksum of its hyper-parameters that is
	// never 0.
	Record   *chunk.TensorRecord
	HyperSum uint32
	Rows     RowRange // the header of a push of a sparse tensor
}

// Where is the location of a message's payload, and its form. Both are opaque to the machine.
type Where struct {
	Payload    uint64 // in the aggregator's process
	Form       uint64 // of a gradient that a codec has shortened; otherwise 0
	Source     uint64 // by reference, in the worker's memory; otherwise 0
	SourceRKey uint32 // by reference, the worker's key for Source; otherwise 0
	Staged     bool   // by reference, in one of the worker's staging buffers
}

// Held is a message that holds its slot.
type Held struct {
	Where
	Slot  uint16
	Op    chunk.Op
	Epoch uint8 // the worker's own, which the answer to a broadcast repeats
}

// RowKind is the kind of a message about rows.
type RowKind uint8

const (
	RowsPushed RowKind = iota // gradients
	RowsWanted                // gradients of a stream whose worker fetches the results
	RowsFetch                 // asks for the next block of results
	RowsPull                  // asks for rows of the parameters
)

// RowRange is the header of a message about rows. The caller has checked it against the message's length.
type RowRange struct {
	From, To uint32 // the rows of the tensor in the lane that gradients cover
	Count    uint32 // rows that the message lists
	Kind     RowKind
	Form     uint8 // of the list of rows, which the machine does not read
}

// RowMessage is a gradient message of rows that holds its slot.
type RowMessage struct {
	Held
	Rows RowRange
}

// Action is an instruction to the caller (package shard). Its sources stay readable until the next event.
type Action struct {
	Kind     Kind
	Op       chunk.Op // of the answer
	Epoch    uint8    // of the answer
	Buffered bool     // a result buffer is reserved, until the caller calls Freed
	New      bool     // of Configure
	Last     bool     // of AnswerRows
	Worker   int32
	Index    uint32 // of the chunk, unless the kind's comment names another index
	End      uint32
	Block    int32 // of MergeRows and AnswerRows: the block's place, or negative
	fold     int32
	Rows     RowRange // of MergeRows the rows to merge, of MergeOne and PullRows the message's header
	Since    int64    // of actions that answer all workers: ns, the arrival of the chunk's first gradient
	Message  Held     // the message that an action for one worker answers, and that a NACK returns
	Err      error
}
