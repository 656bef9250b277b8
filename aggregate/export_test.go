package aggregate

// ResumeSteps are what [Job.Resume] does on the lane's goroutine, for tests that let something happen in between.
func (j *Job) ResumeSteps(rank int, r Resume) (takeOut func() error, drain func() (bool, error), resume func() (Resumed, error)) {
	return func() error { return j.takeOut(rank, &r) }, func() (bool, error) { return j.drain(rank, &r) },
		func() (Resumed, error) { return j.reconnect(rank, &r) }
}
