package aggregate

// ResumeSteps are what [Job.Resume] does on the lane's goroutine, for tests that let something happen in between.
func (j *Job) ResumeSteps(rank int, r Resume) (takeOut func() error, drain func() (bool, error), resume func() (Resumed, error)) {
	s := j.shares[r.Lane]
	return func() error { return s.takeOut(rank, &r) }, func() (bool, error) { return s.drain(rank, &r) },
		func() (Resumed, error) { return s.resume(rank, &r) }
}
