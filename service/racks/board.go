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
	posts   []*post
	runs    map[string]string // by job, the run under way
	givenUp []*GivenUp
	changed chan struct{}
}

// post is the payload of a job's run at a stage. Each rack takes it once.
type post struct {
	job, run, stage string
	payload         []byte
	takers          map[string]string // by rack, the nonce of its question
	racks           []string          // that must take it
}

func (p *post) of(job, run string) bool { return p.job == job && p.run == run }

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
func NewBoard() *Board { return &Board{runs: map[string]string{}, changed: make(chan struct{})} }

// Begin records a job's run.
func (b *Board) Begin(job, run string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[job] = run
	b.notify()
}

// End removes the posts of a job's run.
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
	b.drop(func(p *post) bool { return p.of(job, run) }, len(b.posts))
}

// remember is the time for which a board knows the reason of a run that could not start.
const remember = 5 * time.Second

// GiveUp removes the posts of a run that could not start with runs of other racks. Their questions get the reason, and so do the
// questions of racks that name the run or began to ask before.
func (b *Board) GiveUp(job, run, why string, with []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(job, run)
	now := time.Now()
	b.givenUp = slices.DeleteFunc(b.givenUp, func(g *GivenUp) bool { return now.Sub(g.at) > remember })
	b.givenUp = append(b.givenUp, &GivenUp{job, run, with, now, why})
	b.notify()
}

// mostPosts bounds the posts of a run that all racks have taken. Some of them stay, because an answer may be lost on its
// way.
const mostPosts = 128

// Post adds a post for racks.
func (b *Board) Post(job, run, stage string, payload []byte, racks []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.posts = append(b.posts, &post{job, run, stage, payload, map[string]string{}, racks})
	n := 0
	for _, p := range b.posts {
		if p.of(job, run) {
			n++
		}
	}
	if n > mostPosts {
		b.drop(func(p *post) bool { return p.of(job, run) && len(p.takers) == len(p.racks) }, n-mostPosts)
	}
	b.notify()
}

// mostUntaken bounds the posts that wait for a rack, because the workers of a rack may come to one barrier after another and wait
// at none.
const mostUntaken = 1 << 10

// Behind returns a rack for which the largest allowed number of a run's posts waits, and that number, or an empty name.
func (b *Board) Behind(job, run string) (rack string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	untaken := map[string]int{}
	for _, p := range b.posts {
		if !p.of(job, run) {
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

// Withdraw removes the post of a job's run at a stage, and reports whether a rack may have taken it.
func (b *Board) Withdraw(job, run, stage string) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken = true // a post that is gone was
	b.drop(func(p *post) bool {
		is := p.of(job, run) && p.stage == stage
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

// look is Take without waiting. If the post is missing, it returns a channel that is closed when there may be one.
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
