package data

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

func (r *Rows) request(seq, epoch uint64) *api.NextRowsRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &api.NextRowsRequest{Set: r.set, Seq: seq, Epoch: epoch, Done: r.done, Seconds: r.seconds, Incarnation: r.reader}
}

func (r *Rows) next(ctx context.Context, q *api.NextRowsRequest) (*api.NextRowsResponse, error) {
	a, err := call(ctx, r, "next batch", r.rpc.Next, q)
	if err == nil {
		r.mu.Lock()
		r.reported = max(r.reported, q.Done)
		r.mu.Unlock()
	}
	return a, err
}

// call makes a call, again where it breaks, until the context's deadline or the job's timeout. That is safe: the service answers a
// repeated call as it did before.
func call[Q, A any](ctx context.Context, r *Rows, what string, rpc func(context.Context, *Q) (*A, error), q *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, r.access.Timeout)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, mostWait) {
		try, stop := context.WithTimeout(ctx, tryWithin)
		a, err := rpc(try, q)
		stop()
		if err == nil {
			return a, nil
		}
		answered := connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnavailable
		if answered || r.member != nil && r.member.Err() != nil {
			return nil, r.explain(what, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("set %q: %s: %w: no answer, and at last: %w", r.set, what, membership.ErrServerLost, err)
		}
	}
}

// explain returns the error of a call as one of package membership.
func (r *Rows) explain(what string, err error) error {
	if what = fmt.Sprintf("set %q: %s", r.set, what); r.member != nil {
		return r.member.Explain(what, err)
	}
	return fmt.Errorf("%s: %w", what, r.access.Classify(err))
}

// decode returns the numbers of rows, of a set with so many.
func decode(raw []byte, of uint64) ([]uint64, error) {
	if len(raw)%8 != 0 {
		return nil, fmt.Errorf("%d bytes for row numbers of 8", len(raw))
	}
	rows := make([]uint64, len(raw)/8)
	for i := range rows {
		if rows[i] = binary.LittleEndian.Uint64(raw[8*i:]); rows[i] >= of {
			return nil, fmt.Errorf("row %d of %d", rows[i], of)
		}
	}
	return rows, nil
}
