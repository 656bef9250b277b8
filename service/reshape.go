package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

// By when racks have taken each step of a change, from its beginning on. Each has time for a question that is lost, and for the
// next, whatever those before took. What is left until the first rack fails the job, because it has held for
// [aggregate.HoldPatience], is for lanes that are slow to hear of RELEASE.
const (
	askedTwice = 2*askTurn + time.Second
	heldBy     = askedTwice
	decidedBy  = heldBy + measureHeld + askTurn // measurements are ended in racks that do not answer, too
	turnedBy   = decidedBy + askedTwice
	releasedBy = aggregate.HoldPatience - 3*time.Second
)

// mostTurns bounds what racks are told of all chunks' turns: it is in one question, whose sender is known only once it is read.
const mostTurns = strangersBody - 2<<10

// reshaping is this aggregator's part in a change of a job's shape.
type reshaping struct {
	asking sync.Mutex // held while this rack makes a change
	asked  uint64     // the changes it has made

	mu    sync.Mutex
	now   change   // that is under way here
	began []byte   // the answer to HOLD
	over  []uint64 // by rack, its last change that has ended
}

// change identifies a change of shape in a run: by the rack that makes it, and its number among those of that rack, from 1 on; 0:
// there is none.
type change struct {
	rack   int
	number uint64
}

// Reshape implements the schema's Reshape.
func (s *Service) Reshape(ctx context.Context, r *api.ReshapeRequest) (*api.ReshapeResponse, error) {
	if !callerOf(ctx).admin {
		s.refusals.count("admin")
		return nil, refuse(connect.CodePermissionDenied, "reshape: %w", errNotAdmin)
	}
	j, err := s.overRacks(r.Job)
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "reshape: %w", err)
	}
	shape, err := hierarchy.ParseShape(r.Shape)
	if err != nil {
		return nil, refuse(connect.CodeInvalidArgument, "reshape job %q: %w", r.Job, err)
	}
	ctx, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	was := j.shape()
	if err := j.mayTake(shape); err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "reshape job %q: %w", r.Job, err)
	}
	err = j.reshape(ctx, func(context.Context) (hierarchy.Shape, string, error) { return shape, "", nil })
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "reshape job %q: %w", r.Job, err)
	}
	return &api.ReshapeResponse{Was: was.String()}, nil
}

// mayTake returns why the job's racks cannot go over to a shape.
func (j *job) mayTake(shape hierarchy.Shape) error {
	to := j.spec.racks.topology
	to.Shape = shape
	err := to.Follows(j.shape())
	if err == nil && j.spec.racks.CoreName() != "f32" {
		err = to.CheckOnce()
	}
	if err == nil && j.buddies() {
		err = to.CheckBuddies()
	}
	return err
}

// overRacks returns a job that runs over several racks.
func (s *Service) overRacks(name string) (*job, error) {
	s.mu.Lock()
	j := s.jobs[name]
	s.mu.Unlock()
	if j == nil {
		return nil, fmt.Errorf("no job %q runs here", printable(name, maxHostName))
	}
	if state := j.state(); state != "running" {
		return nil, fmt.Errorf("job %q is %s: only one that runs has a shape", name, state)
	}
	if j.spec.racks == nil || len(j.spec.racks.Racks) < 2 {
		return nil, fmt.Errorf("job %q runs in one rack", name)
	}
	return j, nil
}

// shape is how the job's racks reduce now.
func (j *job) shape() hierarchy.Shape {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.choice != nil {
		if s, err := hierarchy.ParseShape(j.choice.Shape); err == nil {
			return s
		}
	}
	return j.spec.racks.topology.Shape
}

// reshape has all racks change the job's shape. While they hold, decide says to which, and why; without a reason somebody has asked
// for it. It fails the job if some racks have changed and others cannot.
func (j *job) reshape(ctx context.Context, decide func(context.Context) (hierarchy.Shape, string, error)) error {
	k := j.spec.racks
	u := k.run(j)
	if u == nil {
		return j.failureError()
	}
	c := &j.reshaping
	if !c.asking.TryLock() {
		return errOtherChange
	}
	defer c.asking.Unlock()
	c.asked++
	id, began := c.asked, time.Now()
	holding, cancel := context.WithDeadline(ctx, began.Add(heldBy))
	answers, err := j.askReshape(holding, u, func(int) *api.ReshapeQuestion {
		return &api.ReshapeQuestion{Kind: api.ReshapeQuestion_HOLD, Change: id}
	})
	cancel()
	var turns [][]byte
	if err == nil {
		turns, err = turnsOf(answers)
	}
	var shape hierarchy.Shape
	var why string
	if err == nil {
		deciding, cancel := context.WithDeadline(ctx, began.Add(decidedBy))
		shape, why, err = decide(deciding)
		cancel()
	}
	// What has begun is ended, whether or not who asked for it still waits: racks that stay held fail the job.
	over, cancel := j.unlessOver(context.WithoutCancel(ctx), nil)
	defer cancel()
	ctx, cancel = context.WithDeadline(over, began.Add(turnedBy))
	defer cancel()
	if err == nil && (why == "" || shape != j.shape()) {
		_, err = j.askReshape(ctx, u, func(int) *api.ReshapeQuestion {
			return &api.ReshapeQuestion{Kind: api.ReshapeQuestion_TURN, Change: id, Shape: shape.String(), Turns: turns, Reason: why}
		})
		if err != nil {
			err = fmt.Errorf("some racks may reduce in shape %v and others not: %w", shape, err)
			if j.state() == "running" { // else the others have ended it, too
				j.agg.Fail(-1, err)
			}
			return err
		}
	}
	// Of a rack that has not answered nobody knows whether it holds, and one that is not released ends the job.
	ctx, cancel = context.WithDeadline(over, began.Add(releasedBy))
	defer cancel()
	_, released := j.askReshape(ctx, u, func(int) *api.ReshapeQuestion {
		return &api.ReshapeQuestion{Kind: api.ReshapeQuestion_RELEASE, Change: id}
	})
	if err == nil {
		err = released
	}
	return err
}

// unlessOver returns a context that ends when the job has failed, the aggregator ends, or ended is closed.
func (j *job) unlessOver(ctx context.Context, ended <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-j.failed:
		case <-ended:
		case <-j.s.closing:
		}
		cancel()
	}()
	return ctx, cancel
}

// turnsOf returns by lane the epochs at which chunks turn, as runs, given what all racks answer to HOLD.
func turnsOf(answers [][]byte) (turns [][]byte, err error) {
	began := make([][][]uint8, len(answers)) // by rack and lane
	for rack, a := range answers {
		if err := json.Unmarshal(a, &began[rack]); err != nil || len(began[rack]) != len(began[0]) {
			return nil, fmt.Errorf("rack %d answers for %d lanes, rack 0 for %d: %w", rack, len(began[rack]), len(began[0]),
				errors.Join(err, errProtocolOfRacks))
		}
	}
	n := 0
	for lane := range began[0] {
		var byRack [][]uint8
		for rack := range began {
			byRack = append(byRack, began[rack][lane])
		}
		epochs, err := hierarchy.TurnAt(byRack)
		if err != nil {
			return nil, err
		}
		runs := runsOf(epochs)
		if turns, n = append(turns, runs), n+len(runs); n > mostTurns {
			return nil, fmt.Errorf("the job's chunks are at so many different epochs that it takes over %d bytes to say them: try again",
				mostTurns)
		}
	}
	return turns, nil
}

// runsOf writes epochs as runs: how often each comes in a row, as a uvarint, and the epoch. Chunks that lie side by side are mostly
// at one.
func runsOf(epochs []uint8) (runs []byte) {
	for len(epochs) > 0 {
		n := slices.IndexFunc(epochs, func(e uint8) bool { return e != epochs[0] })
		if n < 0 {
			n = len(epochs)
		}
		runs = append(binary.AppendUvarint(runs, uint64(n)), epochs[0])
		epochs = epochs[n:]
	}
	return runs
}

// epochsOf reads runs of most epochs in all.
func epochsOf(runs []byte, most int) (epochs []uint8, err error) {
	for len(runs) > 0 {
		n, size := binary.Uvarint(runs)
		if size <= 0 || size == len(runs) || n == 0 || n > uint64(most-len(epochs)) {
			return nil, fmt.Errorf("%d bytes that are no runs of at most %d epochs: %w", len(runs), most, errProtocolOfRacks)
		}
		epochs = append(epochs, bytes.Repeat(runs[size:size+1], int(n))...)
		runs = runs[size+1:]
	}
	return epochs, nil
}

// askReshape asks all racks at once, this one too.
func (j *job) askReshape(ctx context.Context, u *run, about func(rack int) *api.ReshapeQuestion) ([][]byte, error) {
	k := j.spec.racks
	out, errs := make([][]byte, len(k.Racks)), make([]error, len(k.Racks))
	var wg sync.WaitGroup
	for rack := range k.Racks {
		q := about(rack)
		wg.Go(func() {
			if rack == k.own {
				out[rack], errs[rack] = j.takeReshape(ctx, rack, q)
			} else {
				out[rack], errs[rack] = k.ask(ctx, u, rack, &api.AskRequest{Job: j.name, Run: u.ids[rack], Stage: "reshape", Reshape: q})
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// answerReshape takes part in a change that another rack makes.
func (s *Service) answerReshape(ctx context.Context, r *api.AskRequest) ([]byte, error) {
	j, err := s.overRacks(r.Job)
	if err == nil {
		if u := j.spec.racks.run(j); u == nil || u.id != r.Run {
			err = s.cluster.endedHere(r.Job)
		}
	}
	var out []byte
	if err == nil {
		out, err = j.takeReshape(ctx, slices.Index(j.spec.racks.Names(), r.From), r.Reshape)
	}
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "%w", reason(err))
	}
	return out, nil
}

// takeReshape does what a question of a rack asks for. RELEASE ends a change even if its HOLD has not come: one that comes later,
// or again, would hold the job with nobody to release it.
func (j *job) takeReshape(ctx context.Context, rack int, q *api.ReshapeQuestion) ([]byte, error) {
	if rack < 0 {
		return nil, fmt.Errorf("change %d of a rack that is not of the job's: %w", q.Change, errProtocolOfRacks)
	}
	if q.Change == 0 {
		return nil, fmt.Errorf("change 0 of rack %q, and they count from 1: %w", j.spec.racks.Names()[rack], errProtocolOfRacks)
	}
	c, asked := &j.reshaping, change{rack, q.Change}
	c.mu.Lock()
	defer c.mu.Unlock()
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	if c.over == nil {
		c.over = make([]uint64, len(j.spec.racks.Racks))
	}
	switch {
	case q.Kind == api.ReshapeQuestion_RELEASE:
		c.over[rack] = max(c.over[rack], q.Change)
		if c.now != asked {
			return nil, nil // it was asked before
		}
		if err := j.agg.Release(ctx); err != nil {
			return nil, err
		}
		c.now = change{}
		return nil, nil
	case q.Change <= c.over[rack]:
		return nil, fmt.Errorf("change %d has ended here", q.Change)
	case q.Kind == api.ReshapeQuestion_HOLD && c.now == change{}:
		if !j.model.TryRLock() {
			return nil, errors.New("tensors are being registered, saved or restored: try again after that")
		}
		defer j.model.RUnlock()
		began, err := j.agg.Hold(ctx)
		if err != nil {
			return nil, err
		}
		if c.began, err = json.Marshal(began); err != nil {
			return nil, errors.Join(err, j.agg.Release(ctx))
		}
		c.now = asked
	case c.now != asked:
		return nil, errOtherChange
	case q.Kind == api.ReshapeQuestion_TURN:
		if err := j.turnTo(ctx, q); err != nil {
			return nil, err
		}
	}
	return c.began, nil
}

// errOtherChange says that the job's shape is being changed already.
var errOtherChange = errors.New("another change is under way: try again after that")

// turnAt has this rack's chunks take another shape at the epochs that runs say.
func (j *job) turnAt(ctx context.Context, shape hierarchy.Shape, runs [][]byte) error {
	turns := make([][]uint8, len(runs))
	for lane, r := range runs {
		var err error
		if turns[lane], err = epochsOf(r, chunk.MaxLaneChunks); err != nil {
			return err
		}
	}
	return j.agg.Turn(ctx, shape, turns)
}

// turnTo has this rack's chunks take another shape.
func (j *job) turnTo(ctx context.Context, q *api.ReshapeQuestion) error {
	shape, err := hierarchy.ParseShape(q.Shape)
	changes := err == nil && j.shape() != shape
	if changes {
		err = j.turnAt(ctx, shape, q.Turns)
	}
	if err != nil {
		return err
	}
	why := cmp.Or(printable(q.Reason, maxFailureText), "it was asked for while the job ran")
	j.s.log.Info("shape changes", "job", j.name, "shape", shape.String(), "because", why)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.choice = &choice{shape.String(), why}
	j.shapeAsked = j.shapeAsked || q.Reason == ""
	if changes {
		j.shapeChanges++
	}
	return nil
}

// reshaped waits until the job's shape is not being changed. The caller has locked the model, so that no change begins.
func (j *job) reshaped() error {
	for {
		j.reshaping.mu.Lock()
		now := j.reshaping.now
		j.reshaping.mu.Unlock()
		if now.number == 0 {
			return nil
		}
		select {
		case <-j.failed: // at the latest when the lanes have been held for too long
			return j.failureError()
		case <-j.s.closing:
			return errShutdown
		case <-time.After(askAgain):
		}
	}
}
