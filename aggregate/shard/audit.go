package shard

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/aggregate/store"
)

// Audit returns an error if parts of the shard disagree: the machine's counts of send queues with the messages that the connections
// hold, or the result buffers with the answers that read them and the blocks of rows in them.
func (s *Shard) Audit() error {
	if s.Machine.State != reduce.Running || s.Job.Fail.Has() {
		return nil // its messages stay unhandled
	}
	if err := s.Machine.Audit(); err != nil {
		return fmt.Errorf("job %q: %w", s.Job.Name, err)
	}
	refs, lost := make([]int32, store.NumBuffers), false
	for rank, k := range s.Workers.links {
		if k == nil {
			continue
		}
		lost = lost || k.State == session.Closed
		if k.State == session.Up && k.Unposted > 0 {
			return fmt.Errorf("job %q: worker %d: %d answers were not posted", s.Job.Name, rank, k.Unposted)
		}
		if free := s.Machine.Sends(rank); k.State != session.Closed && free+k.Unconfirmed != k.SendDepth {
			return fmt.Errorf("job %q: worker %d: %d messages in a ring of %d with %d free", s.Job.Name, rank, k.Unconfirmed,
				k.SendDepth, free)
		}
		for i := range k.Unconfirmed {
			if r := k.Token(i); r != store.NoBuffer {
				refs[r]++
			}
		}
	}
	for _, place := range s.Machine.Blocks() {
		refs[s.rows.blocks[place].buffer]++
	}
	if err := s.buffers.Audit(refs, lost); err != nil {
		return fmt.Errorf("job %q: %w", s.Job.Name, err)
	}
	return nil
}
