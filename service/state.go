package service

import (
	"context"
	"encoding/binary"
	"errors"
	"math"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
)

// ReadState implements the schema's ReadState.
func (s *Service) ReadState(ctx context.Context, r *api.ReadStateRequest) (*api.ReadStateResponse, error) {
	out := &api.ReadStateResponse{}
	read := func(snap *modelState, pieces []aggregate.Piece, data []float32) error {
		if err := snap.Read(ctx, pieces); err != nil {
			return err
		}
		updates, err := snap.Updates(ctx)
		if err != nil {
			return err
		}
		out.Updates = updates[r.Tensor]
		out.Data = appendFloats(make([]byte, 0, 4*len(data)), data)
		return nil
	}
	if err := s.withState(ctx, r, (*job).readModel, (*job).peek, (*modelState).batch, read); err != nil {
		return nil, err
	}
	return out, nil
}

// WriteState implements the schema's WriteState.
func (s *Service) WriteState(ctx context.Context, r *api.WriteStateRequest) (*api.WriteStateResponse, error) {
	given := func(*modelState) int { return len(r.Data) / 4 }
	quiet := func(j *job, others elsewhere) (*modelState, error) { return j.snapshot(ctx, others) }
	write := func(snap *modelState, pieces []aggregate.Piece, data []float32) error {
		if len(r.Data) != 4*len(data) {
			return refuse(connect.CodeInvalidArgument, "write state: %d bytes: give all elements of each chunk", len(r.Data))
		}
		readFloats(data, r.Data)
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
	if err := s.withState(ctx, r, (*job).lockModel, quiet, given, write); err != nil {
		return nil, err
	}
	return &api.WriteStateResponse{}, nil
}

func appendFloats(b []byte, x []float32) []byte {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// readFloats fills x from bytes of four times its length.
func readFloats(x []float32, b []byte) {
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

// stateCopies is how often a call has values of the state in memory at most: as they are, as bytes, and in its answer, which JSON
// makes longer and writes more than once.
const stateCopies = 6

// stateCost is what a call takes that moves so many elements.
func stateCost(elems int) int64 { return 4 * stateCopies * int64(elems) }

// updatesCost is what the numbers of each tensor's updates take, from here and from elsewhere.
func (j *job) updatesCost() int64 {
	from := max(j.spec.parts, 1)
	if k := j.spec.racks; k != nil {
		from = len(k.Racks)
	}
	return 4 * int64(1+from) * int64(j.plan.NumTensors())
}

// answerCost is what an answer to a question about the state takes.
func (j *job) answerCost(q *api.StateQuestion) int64 {
	elems := 0
	switch q.Kind {
	case api.StateQuestion_READ, api.StateQuestion_READ_KEPT, api.StateQuestion_WRITE:
		for _, id := range q.Chunks {
			if int64(id) < int64(j.plan.NumChunks()) {
				elems += j.plan.Chunk(int(id)).Elems
			}
		}
		elems = min(elems, j.mostElems())
	case api.StateQuestion_UPDATES, api.StateQuestion_SET_UPDATES, api.StateQuestion_KEPT_UPDATES:
		elems = j.plan.NumTensors()
	}
	return stateCost(elems)
}

// carriedCost is what questions take that a worker carries, of all other parts at once.
func (j *job) carriedCost() int64 {
	j.mu.Lock()
	tensors := j.tensors
	j.mu.Unlock()
	return stateCost(max(carriedElems, j.plan.ChunkBytes()/2) + j.spec.parts*tensors)
}

// checkpointCost is what a save or a restore takes: a batch, which may come from elsewhere and is in no answer, the buffers of the
// file, and its header.
func (j *job) checkpointCost() int64 {
	elems := j.mostElems()
	if j.spec.parts > 1 {
		elems = max(carriedElems, j.plan.ChunkBytes()/2)
	}
	bytes := 4*4*int64(elems) + j.updatesCost() + 2<<20
	for i := range j.plan.NumTensors() {
		bytes += 2 * int64(messageCost+len(j.plan.Tensor(i).Name))
	}
	return bytes
}

// stateRange says which elements of a tensor a call is about.
type stateRange interface {
	GetTensor() uint32
	GetArray() uint32
	GetOffset() uint64
	GetCarry() string
}

// readModel lets tensors be used until unlock is called, lockModel leaves them to the caller alone.
func (j *job) readModel() (unlock func()) {
	j.model.RLock()
	return j.model.RUnlock
}

func (j *job) lockModel() (unlock func()) {
	j.model.Lock()
	return j.unlockModel
}

// withState calls f with the pieces that begin at the range's offset and hold so many elements at most, but one piece at least.
func (s *Service) withState(ctx context.Context, r stateRange, lock func(*job) func(),
	open func(*job, elsewhere) (*modelState, error), most func(*modelState) int,
	f func(*modelState, []aggregate.Piece, []float32) error) error {
	m, err := s.active(ctx)
	if err != nil {
		return err
	}
	j := m.job
	if j.spec.outer.Every > 0 {
		return refuse(connect.CodeFailedPrecondition,
			"state: the racks of job %q train on their own, and each has its own: save and restore a checkpoint, or pull parameters", j.name)
	}
	defer lock(j)()
	release, err := j.hold()
	if err != nil {
		return err
	}
	defer release()
	if int64(r.GetTensor()) >= int64(j.plan.NumTensors()) {
		return refuse(connect.CodeInvalidArgument, "state of tensor %d: job %q has %d", r.GetTensor(), j.name, j.plan.NumTensors())
	}
	others, done, err := m.elsewhere(r.GetCarry())
	if err != nil {
		return err
	}
	defer done()
	snap, err := open(j, others)
	if err != nil {
		return refuse(connect.CodeFailedPrecondition, "state: %w", err)
	}
	name := j.plan.Tensor(int(r.GetTensor())).Name
	if int64(r.GetArray()) >= int64(snap.Arrays()) {
		return refuse(connect.CodeOutOfRange, "array %d of tensor %q: there are %d", r.GetArray(), name, snap.Arrays())
	}
	var pieces []aggregate.Piece
	n, elems := 0, most(snap)
	first, end := j.plan.TensorChunks(int(r.GetTensor()))
	for id := first; id < end; id++ {
		c := j.plan.Chunk(id)
		if c.Offset < r.GetOffset() {
			continue
		}
		if len(pieces) == 0 && c.Offset != r.GetOffset() || len(pieces) > 0 && n+c.Elems > elems {
			break
		}
		pieces = append(pieces, aggregate.Piece{Chunk: id, Array: int(r.GetArray())})
		n += c.Elems
	}
	if len(pieces) == 0 {
		return refuse(connect.CodeInvalidArgument, "state of tensor %q from element %d on: no chunk begins there", name, r.GetOffset())
	}
	if err := j.chargeCall(ctx, "a part of the state", stateCost(n)+j.updatesCost()); err != nil {
		return err
	}
	data := make([]float32, n)
	at := 0
	for i := range pieces {
		to := at + j.plan.Chunk(pieces[i].Chunk).Elems
		pieces[i].Data = data[at:to]
		at = to
	}
	err = f(snap, pieces, data)
	if refused := new(connect.Error); err != nil && !errors.As(err, &refused) {
		err = refuse(checkpointCode(err), "state of tensor %q: %w", name, err)
	}
	return err
}
