package lane

import "github.com/rackweave/rackweave/verbs"

// Tenant is one job's part of a lane.
type Tenant interface {
	// Advance continues work that waited for room, and reports whether it did anything.
	Advance() bool
	// Pending reports whether Advance may have something to do.
	Pending() bool
	// Tick looks for a stall, and reports whether the tenant is stalled. Ticks within a millisecond of another are not counted.
	Tick(counted bool) (stalled bool)
	// Recover resumes broken connections whose workers have returned, and reports whether others are still broken.
	Recover() (broken bool)
	// Failure returns the error of the job's failure, or nil.
	Failure() error
	// Fail ends the job.
	Fail(err error)
	// End stops the traffic of a job that has failed. The lane may call it more than once.
	End()
	// Publish copies the tenant's counters for other goroutines, and adds its gauges to c.
	Publish(c *Counters)
	// Audit returns an error that names the first invariant that does not hold between two rounds.
	Audit() error
}

// Handler handles the completions of a connection.
type Handler interface {
	// Receive handles a message.
	Receive(c *Conn, wc *verbs.WC)
	// Delivered records that n messages have arrived at the peer.
	Delivered(c *Conn, n int)
	// Failed handles the failure of the queue pair of a connection that was up. survives reports whether the worker can resume it.
	Failed(c *Conn, survives bool, err error)
	// QueueLost handles the loss of the completion queue that the connection used.
	QueueLost(c *Conn, err error)
}
