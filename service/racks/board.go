package racks

import (
	"context"
	"slices"
	"sync"
)

// Board holds what an aggregator has to say of its jobs, until every other rack has asked. Any goroutine may use it.
type Board struct {
	mu      sync.Mutex
	posts   []*post
	runs    map[string]string // by job, the run under way
	changed chan struct{}
}

// post is what a job's run has to say at a stage. Each rack takes it once.
type post struct {
	job, run, stage string
	payload         []byte
	takers          map[string]string // by rack, the nonce of its question
	racks           int               // that are to take it
}

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
	if b.runs[job] == run {
		delete(b.runs, job)
	}
	b.drop(func(p *post) bool { return p.job == job && p.run == run }, len(b.posts))
	b.notify()
}

// mostPosts bounds what a run keeps that all racks have taken. Some is kept, as an answer may be lost on its way.
const mostPosts = 128

// Post says something to so many racks.
func (b *Board) Post(job, run, stage string, payload []byte, racks int) {
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
		b.drop(func(p *post) bool { return p.job == job && p.run == run && len(p.takers) == p.racks }, n-mostPosts)
	}
	b.notify()
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

// Take returns what is said to a rack, and waits for it until ctx ends: then ok is false. gone says that the run that it asks of
// has ended; run is empty where it asks of any.
func (b *Board) Take(ctx context.Context, from, job, run, stage, nonce string) (payload []byte, ok, gone bool) {
	for {
		b.mu.Lock()
		if run != "" && b.runs[job] != run {
			b.mu.Unlock()
			return nil, false, true
		}
		if p := b.find(from, job, run, stage, nonce); p != nil {
			p.takers[from] = nonce
			payload = p.payload
			b.mu.Unlock()
			return payload, true, false
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, false
		}
	}
}

// find returns the oldest post that the rack has not taken, or that it took with the same nonce.
func (b *Board) find(from, job, run, stage, nonce string) *post {
	for _, p := range b.posts {
		if p.job != job || p.stage != stage || run != "" && p.run != run {
			continue
		}
		if taken, is := p.takers[from]; !is || taken == nonce {
			return p
		}
	}
	return nil
}
