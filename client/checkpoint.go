package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
)

// Save makes the aggregator write the parameters and the optimizer's state to its disk under a name, and returns the path of
// the file there. One worker calls it while no worker has a gradient under way: after a barrier, with another one before the
// next step. Where the job is spread over several aggregators, the first writes the state of all, which comes through this worker.
func (w *Worker) Save(ctx context.Context, name string) (path string, err error) {
	err = w.carried(ctx, "save", func(ctx context.Context, a *aggregator, ms uint32, carry string) error {
		r, err := a.rpc.Save(ctx, &api.SaveRequest{Name: name, TimeoutMs: ms, Carry: carry})
		if err == nil {
			path = r.Path
		}
		return err
	})
	return path, err
}

// BuddyName is the name under which [Worker.Restore] finds what racks keep of each other's state.
const BuddyName = api.BuddyName

// GoOn takes up the job at the last whole step of its run before, which failed: from the memory of the aggregators that live, in a
// cluster whose racks have buddies. All workers call it once all tensors are registered, and then pull the parameters. It returns
// how many optimizer steps those have had. An error at one worker is one at all.
func (w *Worker) GoOn(ctx context.Context) (step int, err error) {
	if _, err := w.barrier(ctx, "go-on"); err != nil {
		return 0, err
	}
	var why error
	if w.Rank() == 0 {
		why = w.Restore(ctx, BuddyName)
	}
	switch r, err := w.barrier(ctx, "gone-on"); {
	case why != nil || err != nil:
		return 0, cmp.Or(why, err)
	case r.RestoredStep == nil:
		return 0, errors.New("go on: worker 0 could not restore the state: see its error")
	default:
		return int(*r.RestoredStep), nil
	}
}

// Restore makes the aggregator read what Save wrote under a name, in this run or an earlier one, for a job of the same name,
// tensors and optimizer; under [BuddyName], what racks keep of each other's state. One worker calls it, as it does Save; then every
// worker pulls the parameters.
func (w *Worker) Restore(ctx context.Context, name string) error {
	return w.carried(ctx, "restore", func(ctx context.Context, a *aggregator, ms uint32, carry string) error {
		_, err := a.rpc.Restore(ctx, &api.RestoreRequest{Name: name, TimeoutMs: ms, Carry: carry})
		return err
	})
}

// carried makes a call to the first aggregator, and carries what it asks the others meanwhile.
func (w *Worker) carried(ctx context.Context, what string, call func(context.Context, *aggregator, uint32, string) error) error {
	ctx, cancel, ms := callTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	first := w.aggregators[0]
	if !w.several() {
		if err := call(ctx, first, ms, ""); err != nil {
			return w.callError(what, err)
		}
		return nil
	}
	carry := rand.Text()
	during, end := context.WithCancel(ctx)
	defer end()
	var lost error
	var carrying sync.WaitGroup
	carrying.Go(func() {
		if lost = w.carry(during, carry); lost != nil {
			cancel() // nobody answers the call's questions any more
		}
	})
	err := call(ctx, first, ms, carry)
	end()
	carrying.Wait()
	switch {
	case err == nil:
		return nil
	case lost != nil && connect.CodeOf(err) == connect.CodeCanceled:
		err = lost
	}
	return w.callError(what, err)
}

// carry carries questions of the first aggregator to the others, and their answers back, until the call that asks them has ended.
func (w *Worker) carry(during context.Context, name string) error {
	r := &api.CarryRequest{Carry: name}
	for {
		asked, err := w.aggregators[0].rpc.Carry(during, r)
		if during.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.aggregators[0].cfg.Server, err)
		}
		r.Answers = make([]*api.CarriedAnswer, len(asked.Questions))
		var all sync.WaitGroup
		for i, q := range asked.Questions {
			all.Go(func() { r.Answers[i] = w.answer(during, q) })
		}
		all.Wait()
	}
}

// answer has an aggregator answer a question.
func (w *Worker) answer(ctx context.Context, q *api.CarriedQuestion) *api.CarriedAnswer {
	if int64(q.Part) >= int64(len(w.aggregators)) {
		return &api.CarriedAnswer{Refusal: fmt.Sprintf("the worker knows %d aggregators", len(w.aggregators))}
	}
	a := w.aggregators[q.Part]
	out, err := a.rpc.AnswerState(ctx, q.Question)
	if err != nil {
		return &api.CarriedAnswer{Refusal: fmt.Sprintf("at %s: %v", a.cfg.Server, classify(err))}
	}
	return &api.CarriedAnswer{Payload: out.Payload}
}
