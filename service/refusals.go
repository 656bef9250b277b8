package service

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// refusals counts what was turned away, by reason. It logs some: a flood of strangers is no flood of lines.
type refusals struct {
	log  *slog.Logger
	some *rate.Limiter

	mu     sync.Mutex
	counts map[string]uint64
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: log, some: rate.NewLimiter(rate.Every(10*time.Second), 5), counts: map[string]uint64{}}
}

func (r *refusals) count(reason string) {
	r.mu.Lock()
	r.counts[reason]++
	n := r.counts[reason]
	r.mu.Unlock()
	if r.some.Allow() {
		r.log.Warn("turned away", "reason", reason, "so_far", n)
	}
}

func (r *refusals) all() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}
