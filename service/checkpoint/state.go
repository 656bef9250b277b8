package checkpoint

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// ReadState returns part of a tensor's state. Elements that other aggregators have are 0.
func (s *State) ReadState(ctx context.Context, r *api.ReadStateRequest) (*api.ReadStateResponse, error) {
	out := &api.ReadStateResponse{}
	read := func(snap *model, pieces []aggregate.Piece, data []float32) error {
		if err := snap.Read(ctx, pieces); err != nil {
			return err
		}
		updates, err := snap.Updates(ctx)
		if err != nil {
			return err
		}
		out.Updates = updates[r.Tensor]
		out.Data = appendValues(nil, data)
		return nil
	}
	return out, s.withState(ctx, r, false, batchElems, read)
}

// WriteState replaces part of a tensor's state.
func (s *State) WriteState(ctx context.Context, r *api.WriteStateRequest) (*api.WriteStateResponse, error) {
	write := func(snap *model, pieces []aggregate.Piece, data []float32) error {
		if len(r.Data) != 4*len(data) {
			return rpc.Refuse(connect.CodeInvalidArgument, "write state: %d bytes: give all elements of each chunk", len(r.Data))
		}
		readValues(data, r.Data)
		if err := snap.Write(ctx, pieces); err != nil || r.Updates == nil {
			return err
		}
		updates, err := snap.Updates(ctx)
		if err != nil {
			return err
		}
		updates[r.Tensor] = *r.Updates
		return snap.SetUpdates(ctx, updates)
	}
	return &api.WriteStateResponse{}, s.withState(ctx, r, true, len(r.Data)/4, write)
}

// stateRange names the elements of a tensor that a call is about.
type stateRange interface {
	GetTensor() uint32
	GetArray() uint32
	GetOffset() uint64
}

// withState calls f with the elements from the range's offset on, at most so many but at least those of one chunk, and with the
// pieces of them that this aggregator has. The other elements are 0. A call that writes has the model alone.
func (s *State) withState(ctx context.Context, r stateRange, writes bool, most int,
	f func(*model, []aggregate.Piece, []float32) error) error {
	if s.Spec.Outer.Every > 0 {
		return rpc.Refuse(connect.CodeFailedPrecondition,
			"state: the racks of job %q train independently, and each has a state of its own: save and restore a checkpoint, or pull parameters", s.Name)
	}
	lock, unlock, open := s.Model.RLock, s.Model.RUnlock, s.peek
	if writes {
		lock, unlock, open = s.Model.Lock, s.unlockModel, s.snapshot
	}
	lock()
	defer unlock()
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	if int64(r.GetTensor()) >= int64(s.Model.Plan.NumTensors()) {
		return rpc.Refuse(connect.CodeInvalidArgument, "state of tensor %d: job %q has %d", r.GetTensor(), s.Name,
			s.Model.Plan.NumTensors())
	}
	snap, err := open(ctx)
	if err != nil {
		return rpc.Refuse(connect.CodeFailedPrecondition, "state: %w", err)
	}
	name := s.Model.Plan.Tensor(int(r.GetTensor())).Name
	if int64(r.GetArray()) >= int64(snap.Arrays()) {
		return rpc.Refuse(connect.CodeOutOfRange, "array %d of tensor %q: there are %d", r.GetArray(), name, snap.Arrays())
	}
	pieces, n := s.piecesFrom(r, most)
	if len(pieces) == 0 {
		return rpc.Refuse(connect.CodeInvalidArgument, "state of tensor %q from element %d on: no chunk begins there", name, r.GetOffset())
	}
	if err := s.ChargeCall(ctx, "a part of the state", stateCost(n)+s.updatesCost()); err != nil {
		return err
	}
	data := make([]float32, n)
	at := 0
	for i := range pieces {
		to := at + s.Model.Plan.Chunk(pieces[i].Chunk).Elems
		pieces[i].Data = data[at:to]
		at = to
	}
	pieces = slices.DeleteFunc(pieces, func(p aggregate.Piece) bool { return !s.owns(p.Chunk) })
	err = f(snap, pieces, data)
	if refused := new(connect.Error); err != nil && !errors.As(err, &refused) {
		err = rpc.Refuse(checkpointCode(err), "state of tensor %q: %w", name, err)
	}
	return err
}

// piecesFrom returns the pieces of a tensor from an offset on, without values, and the number of their elements. A chunk must begin
// at the offset.
func (l local) piecesFrom(r stateRange, most int) (pieces []aggregate.Piece, n int) {
	first, end := l.Model.Plan.TensorChunks(int(r.GetTensor()))
	for id := first; id < end; id++ {
		c := l.Model.Plan.Chunk(id)
		if c.Offset < r.GetOffset() {
			continue
		}
		if len(pieces) == 0 && c.Offset != r.GetOffset() || len(pieces) > 0 && n+c.Elems > most {
			break
		}
		pieces = append(pieces, aggregate.Piece{Chunk: id, Array: int(r.GetArray())})
		n += c.Elems
	}
	return pieces, n
}
