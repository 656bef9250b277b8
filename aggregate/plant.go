package aggregate

// plantedBug names a bug that a build with the tag "plant" can put into this package, so that the simulation (lab/simrack) can
// show that it would be found. In every other build [planted] is a constant, and the code of the bugs is not there.
type plantedBug string

const (
	plantNone          plantedBug = ""
	plantArrivalOrder  plantedBug = "sums begin with the worker that came last"
	plantAnyEpoch      plantedBug = "epochs are not checked"
	plantTwice         plantedBug = "a chunk may come twice"
	plantNoTurn        plantedBug = "it is never another worker's turn to lead"
	plantReleaseEarly  plantedBug = "a result's buffer is used again before it was read"
	plantSilentFailure plantedBug = "a failed job's workers are not told"
	plantNoBarrier     plantedBug = "a commit does not wait for the other lanes' norms"
	plantLeakedSlot    plantedBug = "a chunk that was given back keeps its slot"
	plantResentTwice   plantedBug = "a resumed connection sends a message again that had arrived"
)
