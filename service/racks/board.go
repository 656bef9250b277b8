package racks

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Board holds what an aggregator has to say of its jobs, until every other rack has asked. Any goroutine may use it.
type Board struct {
	mu      sync.Mutex
	posts   []*post
	runs    map[string]string // by job, the run under way
	givenUp []*GivenUp
	changed chan struct{}
}

// post is what a job's run has to say at a stage. Each rack takes it once.
type post struct {
	job, run, stage string
	payload         []byte
	takers          map[string]string // by rack, the nonce of its question
	racks           []string          // that are to take it
}

// Question is what a rack asks of a job.
type Question struct {
	From, Job string
	Run       string // that was asked before; empty: any
	Stage     string
	Nonce     string    // the same again gets the same answer
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

// concerns reports whether a question is about the run, or would have been.
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
func NewBoard() *Board { return &Board{runs: map[string]string{}, changed: make(chan struct{})} }

// Begin takes note of a job's run.
func (b *Board) Begin(job, run string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[job] = run
	b.notify()
}

// End takes back all that a job's run had to say.
func (b *Board) End(job, run string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(job, run)
	b.notify()
}

func (b *Board) end(job, run string) {
	if b.runs[job] == run {
		delete(b.runs, job)
	}
	b.drop(func(p *post) bool { return p.job == job && p.run == run }, len(b.posts))
}

// remember is how long a board knows why a run could not start.
const remember = 5 * time.Second

// GiveUp takes back all that a run had to say that could not start with runs of other racks. Those are told why, and so are racks
// that ask for it, or whose runs began before.
func (b *Board) GiveUp(job, run, why string, with []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(job, run)
	now := time.Now()
	b.givenUp = slices.DeleteFunc(b.givenUp, func(g *GivenUp) bool { return now.Sub(g.at) > remember })
	b.givenUp = append(b.givenUp, &GivenUp{job, run, with, now, why})
	b.notify()
}

// mostPosts bounds what a run keeps that all racks have taken. Some is kept, as an answer may be lost on its way.
const mostPosts = 128

// Post says something to racks.
func (b *Board) Post(job, run, stage string, payload []byte, racks []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.posts = append(b.posts, &post{job, run, stage, payload, map[string]string{}, racks})
	n := 0
	for _, p := range b.posts {
		if p.job == job && p.run == run {
			n++
		}
	}
	if n > mostPosts {
		b.drop(func(p *post) bool { return p.job == job && p.run == run && len(p.takers) == len(p.racks) }, n-mostPosts)
	}
	b.notify()
}

// mostUntaken bounds what waits for a rack: the workers of a rack may come to one barrier after another and wait at none.
const mostUntaken = 1 << 10

// Behind names a rack for which as much of what a run has said waits as may, and says how much that is; empty: there is none.
func (b *Board) Behind(job, run string) (rack string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	untaken := map[string]int{}
	for _, p := range b.posts {
		if p.job != job || p.run != run {
			continue
		}
		for _, r := range p.racks {
			if _, taken := p.takers[r]; taken {
				continue
			}
			if untaken[r]++; untaken[r] == mostUntaken {
				return r, mostUntaken
			}
		}
	}
	return "", 0
}

// Withdraw takes back what a job's run had to say at a stage, and reports whether a rack may have taken it.
func (b *Board) Withdraw(job, run, stage string) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken = true // what is not there any more was
	b.drop(func(p *post) bool {
		is := p.job == job && p.run == run && p.stage == stage
		if is {
			taken = len(p.takers) > 0
		}
		return is
	}, len(b.posts))
	return taken
}

// drop drops the oldest posts that match, n at most.
func (b *Board) drop(match func(*post) bool, n int) {
	b.posts = slices.DeleteFunc(b.posts, func(p *post) bool {
		if n == 0 || !match(p) {
			return false
		}
		n--
		return true
	})
}

func (b *Board) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Take returns what is said to a rack, and waits for it until ctx ends, whose error it returns then. The error is [ErrEnded] or a
// [*GivenUp] if there will be no answer.
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

// look is Take without waiting: where there is no answer yet, changed is closed when there may be one.
func (b *Board) look(q Question) (payload []byte, changed <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.find(q); p != nil {
		p.takers[q.From] = q.Nonce
		return p.payload, nil, nil
	}
	for _, g := range b.givenUp {
		if g.concerns(q) {
			return nil, nil, g
		}
	}
	if q.Run != "" && b.runs[q.Job] != q.Run {
		return nil, nil, ErrEnded
	}
	return nil, b.changed, nil
}

// find returns the oldest post that the rack has not taken, or that it took with the same nonce.
func (b *Board) find(q Question) *post {
	for _, p := range b.posts {
		if p.job != q.Job || p.stage != q.Stage || q.Run != "" && p.run != q.Run || !slices.Contains(p.racks, q.From) {
			continue
		}
		if taken, is := p.takers[q.From]; !is || taken == q.Nonce {
			return p
		}
	}
	return nil
}
