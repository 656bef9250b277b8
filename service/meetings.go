package service

import (
	"slices"
	"sync"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

// meetings is what has become of a job's meetings, where racks may miss some.
type meetings struct {
	mu      sync.Mutex
	held    uint64
	missed  []uint64 // by rack
	weights []int    // by rack, in the last; nil: there was none
	lost    uint64   // decisions that were not logged
	log     chan decided
}

// decided is a decision about meetings that the log names.
type decided struct {
	word    hierarchy.Word
	meeting uint32 // of the fragment, the last
	weights []int
}

// mostDecided bounds the decisions that wait to be logged.
const mostDecided = 1 << 10

func newMeetings(racks int) *meetings {
	return &meetings{missed: make([]uint64, racks), log: make(chan decided, mostDecided)}
}

// hear takes note of a decision; on a lane's goroutine, which must not wait.
func (m *meetings) hear(w hierarchy.Word, meeting uint32, weights []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := decided{word: w, meeting: meeting}
	if w.Kind == hierarchy.Held {
		m.held++
		m.weights = append(m.weights[:0], weights...)
		all := true
		for r, weight := range weights {
			if weight == 0 {
				m.missed[r]++
				all = false
			}
		}
		if all {
			return
		}
		d.weights = slices.Clone(weights)
	}
	select {
	case m.log <- d:
	default:
		m.lost++
	}
}

// logMeetings logs the decisions that were not that all racks meet: with the meetings' numbers a run can be replayed from them.
func (j *job) logMeetings(m *meetings, names []string) {
	log := j.s.log.With("job", j.name)
	for d := range m.log {
		at := []any{"fragment", d.word.Fragment, "meeting", d.meeting}
		switch d.word.Kind {
		case hierarchy.Held:
			log.Info("racks have met without others", append(at, "weights", d.weights)...)
		case hierarchy.Late:
			log.Info("a rack was late and goes on with the last meeting's result", append(at, "rack", names[d.word.Rack])...)
		case hierarchy.Alone:
			log.Info("too few racks come to meet, and one goes on alone", append(at, "rack", names[d.word.Rack])...)
		case hierarchy.Over:
			log.Info("a rack's workers have left: racks meet no more")
		}
	}
	if m.lost > 0 {
		log.Warn("decisions about meetings were not logged: they came too fast", "count", m.lost)
	}
}

// describe adds the meetings to a job's status.
func (m *meetings) describe(out *api.JobStatus) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Meetings = m.held
	for r, rack := range out.Racks {
		rack.MissedMeetings = m.missed[r]
		if m.weights != nil {
			rack.LastWeight = uint64(m.weights[r])
		}
	}
}

// counts returns how many meetings were held, and how many each rack has missed.
func (m *meetings) counts() (held uint64, missed []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held, slices.Clone(m.missed)
}
