package racks

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Board holds the posts of an aggregator's jobs until every other rack has taken them. It is safe for concurrent use.
type Board struct {
	mu      sync.Mutex
	runs    map[string]*run // under way
	givenUp []*GivenUp
	changed chan struct{}
}

// run holds a job's name and its posts, the oldest first.
type run struct {
	job   string
	posts []*post
}

// post is the payload of a run at a stage. Each rack takes it once.
type post struct {
	stage   string
	payload []byte
	takers  map[string]string // by rack, the nonce of its question
	racks   []string          // that must take it
}

// Question is a rack's question for a post of a job.
type Question struct {
	From, Job string
	Run       string // the run that is asked. If empty, it is any.
	Stage     string
	Nonce     string    // A question with the same nonce gets the same answer.
	Asker     string    // the run that asks
	Since     time.Time // when the rack began to ask
}

// GivenUp is the error of a question about a run that could not start.
type GivenUp struct {
	job, run string
	with     []string // runs of other racks
	at       time.Time
	Why      string
}

// concerns reports whether a question is about the run, or would be if the run had started.
func (e *GivenUp) concerns(q Question) bool {
	if q.Job != e.job || q.Run != "" {
		return q.Job == e.job && q.Run == e.run
	}
	return q.Asker != "" && slices.Contains(e.with, q.Asker) || e.at.After(q.Since)
}

func (e *GivenUp) Error() string { return e.Why }

// ErrEnded is the error of a question about a run that has ended.
var ErrEnded = errors.New("the run has ended")

// NewBoard returns an empty board.
func NewBoard() *Board { return &Board{runs: map[string]*run{}, changed: make(chan struct{})} }

// Begin records a job's run.
func (b *Board) Begin(job, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[id] = &run{job: job}
	b.notify()
}

// End removes a run with its posts.
func (b *Board) End(run string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.runs, run)
	b.notify()
}

// remember is the time for which a board knows the reason of a run that could not start.
const remember = 5 * time.Second

// GiveUp removes a run that could not start with runs of other racks. Their questions get the reason, and so do the questions of
// racks that name the run or began to ask before.
func (b *Board) GiveUp(run, why string, with []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.runs[run]
	if r == nil { // it gave up before it began
		return
	}
	delete(b.runs, run)
	now := time.Now()
	b.givenUp = slices.DeleteFunc(b.givenUp, func(g *GivenUp) bool { return now.Sub(g.at) > remember })
	b.givenUp = append(b.givenUp, &GivenUp{r.job, run, with, now, why})
	b.notify()
}

// mostPosts bounds the posts of a run that all racks have taken. Some of them stay, because an answer may be lost on its
// way.
const mostPosts = 128

// Post adds a post for racks, unless the run has ended.
func (b *Board) Post(run, stage string, payload []byte, racks []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.runs[run]
	if r == nil {
		return
	}
	r.posts = append(r.posts, &post{stage, payload, map[string]string{}, racks})
	n := len(r.posts)
	r.posts = slices.DeleteFunc(r.posts, func(p *post) bool {
		if n <= mostPosts || len(p.takers) < len(p.racks) {
			return false
		}
		n--
		return true
	})
	b.notify()
}

// mostUntaken bounds the posts that wait for a rack, because the workers of a rack may come to one barrier after another and wait
// at none.
const mostUntaken = 1 << 10

// Behind returns a rack for which the largest allowed number of a run's posts waits, and that number, or an empty name.
func (b *Board) Behind(run string) (rack string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.runs[run]
	if r == nil {
		return "", 0
	}
	untaken := map[string]int{}
	for _, p := range r.posts {
		for _, rack := range p.racks {
			if _, taken := p.takers[rack]; taken {
				continue
			}
			if untaken[rack]++; untaken[rack] == mostUntaken {
				return rack, mostUntaken
			}
		}
	}
	return "", 0
}

// Withdraw removes the post of a run at a stage, and reports whether a rack may have taken it.
func (b *Board) Withdraw(run, stage string) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken = true // a post that is gone was
	if r := b.runs[run]; r != nil {
		r.posts = slices.DeleteFunc(r.posts, func(p *post) bool {
			if p.stage == stage {
				taken = len(p.takers) > 0
			}
			return p.stage == stage
		})
	}
	return taken
}

func (b *Board) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Take returns the post for a rack. It waits for the post until ctx ends, and then returns the error of ctx. The error is
// [ErrEnded] or a [*GivenUp] if there will be no answer.
func (b *Board) Take(ctx context.Context, q Question) ([]byte, error) {
	for {
		payload, changed, err := b.look(q)
		if changed == nil {
			return payload, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// look is Take without waiting. It returns the oldest post that the rack has not taken, or that it took with the same nonce. If
// it is missing, it returns a channel that is closed when there may be one.
func (b *Board) look(q Question) (payload []byte, changed <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, r := range b.runs {
		if r.job != q.Job || q.Run != "" && id != q.Run {
			continue
		}
		for _, p := range r.posts {
			taken, is := p.takers[q.From]
			if p.stage == q.Stage && slices.Contains(p.racks, q.From) && (!is || taken == q.Nonce) {
				p.takers[q.From] = q.Nonce
				return p.payload, nil, nil
			}
		}
	}
	for _, g := range b.givenUp {
		if g.concerns(q) {
			return nil, nil, g
		}
	}
	if q.Run != "" && b.runs[q.Run] == nil {
		return nil, nil, ErrEnded
	}
	return nil, b.changed, nil
}
