package aggregate

import "context"

// ResumeSteps are what [Job.Resume] does on the lane's goroutine, for tests that let something happen in between.
func (j *Job) ResumeSteps(rank int, r Resume) (takeOut func() error, drain func() (bool, error), resume func() (Resumed, error)) {
	return func() error { return j.takeOut(rank, &r) }, func() (bool, error) { return j.drain(rank, &r) },
		func() (Resumed, error) { return j.reconnect(rank, &r) }
}

// Tear leaves a job's share of a lane in a state that no input should bring about: the lane panics over its next chunk.
func (j *Job) Tear(lane int) error {
	return j.lanes[lane].Do(context.Background(), func() { j.shares[lane].store.chunks = nil })
}

// PanicIn runs a command of the job's that panics.
func (j *Job) PanicIn(lane int) error {
	return j.lanes[lane].do(context.Background(), j.shares[lane], func() { panic("for the test") })
}
