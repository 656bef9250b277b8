package client

import (
	"context"
	"slices"
	"sync"

	"github.com/rackweave/rackweave/client/data"
)

// sets keeps what a worker reads by [Worker.OpenRows].
type sets struct {
	mu   sync.Mutex
	open []*data.Rows
}

// all returns the sets that are open.
func (s *sets) all() []*data.Rows {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, (*data.Rows).Closed)
	return slices.Clone(s.open)
}

// OpenRows begins to deal rows of a training set to the workers of the job. All workers call it. It is closed with the worker.
func (j *job) OpenRows(ctx context.Context, o data.Options) (*data.Rows, error) {
	r, err := data.Open(ctx, j.member, o)
	if err != nil {
		return nil, err
	}
	j.sets.mu.Lock()
	defer j.sets.mu.Unlock()
	j.sets.open = append(j.sets.open, r)
	return r, nil
}
