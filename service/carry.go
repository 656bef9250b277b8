package service

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
)

// carry is a worker's call that asks the aggregators of a job's other parts about its state. The worker carries questions and
// answers, as the aggregators know nothing of each other.
type carry struct {
	j         *job
	users     int // calls that have it; guarded by job.mu
	questions chan []*api.CarriedQuestion
	answers   chan []*api.CarriedAnswer
}

// carry returns the one with a name, and makes it for the first of the calls that use it: either may come first.
func (m *member) carry(name string) (c *carry, end func()) {
	j := m.job
	j.mu.Lock()
	defer j.mu.Unlock()
	if c = m.carries[name]; c == nil {
		c = &carry{j: j, questions: make(chan []*api.CarriedQuestion), answers: make(chan []*api.CarriedAnswer)}
		if m.carries == nil {
			m.carries = map[string]*carry{}
		}
		m.carries[name] = c
	}
	c.users++
	return c, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if c.users--; c.users == 0 {
			delete(m.carries, name)
		}
	}
}

// elsewhere returns how a call of the worker's reaches the job's other aggregators until its end; nil: there are none.
func (m *member) elsewhere(name string) (others elsewhere, end func(), err error) {
	j := m.job
	switch {
	case j.spec.racks != nil:
		return otherRacks{j.spec.racks, j}, func() {}, nil
	case j.spec.parts < 2:
		return nil, func() {}, nil
	case name == "":
		return nil, nil, refuse(connect.CodeFailedPrecondition,
			"job %q is spread over %d aggregators, between which the worker must carry questions: use a client of this aggregator's version",
			j.name, j.spec.parts)
	}
	others, end = m.carry(name)
	return others, end, nil
}

func (c *carry) own() int { return c.j.spec.part }

func (c *carry) names() (names []string) {
	for i := range c.j.spec.parts {
		names = append(names, fmt.Sprintf("aggregator %d of %d", i+1, c.j.spec.parts))
	}
	return names
}

func (c *carry) replicated() bool { return false }

func (c *carry) ask(ctx context.Context, about func(part int) *api.StateQuestion) ([][]byte, error) {
	answers, _, err := c.put(ctx, about, func(int) []byte { return nil })
	return answers, err
}

func (c *carry) replace(ctx context.Context, about func(int) *api.StateQuestion, payload func(int) []byte) (some bool, err error) {
	_, some, err = c.put(ctx, about, payload)
	return some, err
}

// put gives the worker questions and waits for the answers. It reports whether the worker had them.
func (c *carry) put(ctx context.Context, about func(int) *api.StateQuestion, payload func(int) []byte) (answers [][]byte, gone bool,
	err error) {
	var questions []*api.CarriedQuestion
	for i := range c.j.spec.parts {
		if i == c.own() {
			continue
		}
		if q := about(i); q != nil {
			questions = append(questions, &api.CarriedQuestion{Part: uint32(i),
				Question: &api.AnswerStateRequest{Question: q, Payload: payload(i)}})
		}
	}
	answers = make([][]byte, c.j.spec.parts)
	if len(questions) == 0 {
		return answers, false, nil
	}
	select {
	case c.questions <- questions:
	case <-c.j.failed:
		return nil, false, c.j.failureError()
	case <-ctx.Done():
		return nil, false, fmt.Errorf("the worker does not carry questions to the other aggregators: %w", ctx.Err())
	}
	var got []*api.CarriedAnswer
	select {
	case got = <-c.answers:
	case <-c.j.failed:
		return nil, true, c.j.failureError()
	case <-ctx.Done():
		return nil, true, fmt.Errorf("the worker has not carried the other aggregators' answers: %w", ctx.Err())
	}
	if len(got) != len(questions) {
		return nil, true, fmt.Errorf("the worker carries %d answers to %d questions", len(got), len(questions))
	}
	for i, a := range got {
		part := questions[i].Part
		if a.Refusal != "" {
			return nil, true, fmt.Errorf("%s: %s", c.names()[part], printable(a.Refusal, maxRefusal))
		}
		answers[part] = a.Payload
	}
	return answers, true, nil
}

// maxRefusal bounds what is repeated of another aggregator's words.
const maxRefusal = 1 << 10

// Carry implements the schema's Carry.
func (s *Service) Carry(ctx context.Context, r *api.CarryRequest) (*api.CarryResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	if m.job.spec.parts < 2 {
		return nil, refuse(connect.CodeFailedPrecondition, "carry: job %q is at one aggregator, which asks no other", m.job.name)
	}
	if err := m.job.chargeCall(ctx, "questions to carry", m.job.carriedCost()); err != nil {
		return nil, err
	}
	c, end := m.carry(r.Carry)
	defer end()
	turn, cancel := context.WithTimeout(ctx, askTurn)
	defer cancel()
	if len(r.Answers) > 0 {
		select {
		case c.answers <- r.Answers:
		case <-turn.Done():
			return nil, refuse(connect.CodeFailedPrecondition, "carry: nobody waits for %d answers: the call has ended", len(r.Answers))
		}
	}
	select {
	case q := <-c.questions:
		return &api.CarryResponse{Questions: q}, nil
	case <-m.job.failed:
		return nil, m.job.failureError()
	case <-s.closing:
		return nil, connect.NewError(connect.CodeUnavailable, errShutdown)
	case <-turn.Done():
		return &api.CarryResponse{}, nil
	}
}

// AnswerState implements the schema's AnswerState.
func (s *Service) AnswerState(ctx context.Context, r *api.AnswerStateRequest) (*api.AnswerStateResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	j := m.job
	switch {
	case j.spec.parts < 2:
		return nil, refuse(connect.CodeFailedPrecondition, "answer state: job %q is at one aggregator: read and write its state there", j.name)
	case r.Question == nil:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("answer state: no question"))
	case !j.model.TryRLock():
		return nil, refuse(connect.CodeFailedPrecondition, "tensors of job %q are being registered, saved or restored: try again", j.name)
	}
	defer j.model.RUnlock()
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	if err := j.chargeCall(ctx, "an answer about the state", j.answerCost(r.Question)); err != nil {
		return nil, err
	}
	payload, err := j.answerState(ctx, r.Question, func(bytes int) ([]byte, error) {
		if len(r.Payload) != bytes {
			return nil, fmt.Errorf("%d bytes for %d: %w", len(r.Payload), bytes, errProtocolOfRacks)
		}
		return r.Payload, nil
	})
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "state of job %q: %w", j.name, err)
	}
	return &api.AnswerStateResponse{Payload: payload}, nil
}
