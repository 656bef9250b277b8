package door

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Refusals counts what was turned away, by reason. It logs some, so that a flood of strangers does not flood the log.
type Refusals struct {
	log  *slog.Logger
	some *rate.Limiter

	mu     sync.Mutex
	counts map[string]uint64
}

// NewRefusals returns the counts of refusals, none so far.
func NewRefusals(log *slog.Logger) *Refusals {
	return &Refusals{log: log, some: rate.NewLimiter(rate.Every(10*time.Second), 5), counts: map[string]uint64{}}
}

// Count counts a refusal, and logs some.
func (r *Refusals) Count(reason string) {
	r.mu.Lock()
	r.counts[reason]++
	n := r.counts[reason]
	r.mu.Unlock()
	if r.some.Allow() {
		r.log.Warn("turned away", "reason", reason, "so_far", n)
	}
}

// All returns the counts by reason.
func (r *Refusals) All() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}
