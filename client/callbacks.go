package client

import (
	"context"
	"sync"
)

// callbacks calls Op.Done. One goroutine waits for the operations that have one, in the order in which they were started, and then
// calls those of all that are done.
type callbacks struct {
	mu      sync.Mutex
	pending []callback
	running bool
	idle    sync.WaitGroup
}

type callback struct {
	handle Handle
	done   func(error)
}

func (c *callbacks) add(h Handle, done func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(c.pending, callback{h, done})
	if !c.running {
		c.running = true
		c.idle.Go(c.run)
	}
}

// run ends when nothing is pending.
func (c *callbacks) run() {
	for {
		c.mu.Lock()
		if len(c.pending) == 0 {
			c.running = false
			c.mu.Unlock()
			return
		}
		oldest := c.pending[0]
		c.mu.Unlock()
		err := oldest.handle.Wait(context.Background())
		c.mu.Lock()
		c.pending = c.pending[1:]
		others := c.takeDone()
		c.mu.Unlock()
		oldest.done(err)
		for _, o := range others {
			o.done(o.handle.Wait(context.Background()))
		}
	}
}

// takeDone removes what is done from the pending, under mu.
func (c *callbacks) takeDone() []callback {
	var done []callback
	kept := c.pending[:0]
	for _, p := range c.pending {
		if ok, _ := p.handle.Done(); ok {
			done = append(done, p)
		} else {
			kept = append(kept, p)
		}
	}
	clear(c.pending[len(kept):])
	c.pending = kept
	return done
}

// stop waits until every callback was called. The worker has failed, or all operations are done.
func (c *callbacks) stop() { c.idle.Wait() }
