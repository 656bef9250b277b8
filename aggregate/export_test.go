package aggregate

import (
	"context"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/hierarchy"
)

// ResumeSteps are what [Job.Resume] does on the lane's goroutine, for tests that let something happen in between.
func (j *Job) ResumeSteps(rank int, r Resume) (takeOut func() error, drain func() (bool, error), resume func() (Resumed, error)) {
	return func() error { return j.takeOut(rank, &r) }, func() (bool, error) { return j.drain(rank, &r) },
		func() (Resumed, error) { return j.reconnect(rank, &r) }
}

// Publish publishes a lane's counters.
func (l *Lane) Publish(ctx context.Context) error { return l.Do(ctx, l.publish) }

// FillTrace makes a trace hold as many events as it can.
func (j *Job) FillTrace(ctx context.Context) error {
	for i, s := range j.shares {
		if err := j.lanes[i].Do(ctx, func() { s.trace.next = uint64(len(s.trace.ring)) + 1 }); err != nil {
			return err
		}
	}
	return nil
}

// WatchCommands returns what tells the longest processor time of a command that lanes have run since.
func WatchCommands(e *Engine) func() time.Duration {
	var longest atomic.Int64
	for _, l := range e.lanes {
		_ = l.Do(context.Background(), func() {
			runtime.LockOSThread()
			l.watch = func(f func()) func() {
				return func() {
					before := ThreadTime()
					f()
					took := int64(ThreadTime() - before)
					for seen := longest.Load(); took > seen && !longest.CompareAndSwap(seen, took); seen = longest.Load() {
					}
				}
			}
		})
	}
	return func() time.Duration { return time.Duration(longest.Load()) }
}

// ThreadTime is the processor time of the calling thread.
func ThreadTime() time.Duration {
	const clock = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic(errno)
	}
	return time.Duration(ts.Nano())
}

// Tear leaves a job's share of a lane in a state that no input should bring about: the lane panics over its next chunk.
func (j *Job) Tear(lane int) error {
	return j.lanes[lane].Do(context.Background(), func() { j.shares[lane].store.chunks = nil })
}

// PanicIn runs a command of the job's that panics.
func (j *Job) PanicIn(lane int) error {
	return j.lanes[lane].do(context.Background(), j.shares[lane], func() { panic("for the test") })
}

// Streams reports whether a tensor's results for a worker are written past the cache, by every lane that has some of it.
func (j *Job) Streams(rank, tensor int) bool {
	some := false
	for _, s := range j.shares {
		if d := s.links[rank].dst[tensor]; d.addr != 0 {
			if some = d.streaming; !some {
				break
			}
		}
	}
	return some
}

// Mishear has one lane hear a word of the racks' leader that was not said.
func (j *Job) Mishear(lane int, w hierarchy.Word) { j.shares[lane].hear([]hierarchy.Word{w}) }

// MostWords bounds the leader's words that wait for a rack.
const MostWords = mostWords

// Come has the job's leader hear that a rack's chunk has come to its next meeting.
func (j *Job) Come(rack int) {
	j.atDesk(func(*desk) {
		if !j.shares[0].lead(rack, noticeCome, 0) {
			panic("the rack has come already")
		}
	})
}

// AwayThere has the job's leader hear that a rack's workers wait for others.
func (j *Job) AwayThere(rack int) { j.atDesk(func(*desk) { j.shares[0].lead(rack, noticeAway, 0) }) }

// Unheard has a rack never acknowledge what the job's leader says next.
func (j *Job) Unheard(rack int) { j.shares[0].quorum.desk.peers[rack].busy = true }

// Words is how many of the leader's words are kept.
func (j *Job) Words() int { return len(j.shares[0].quorum.desk.log) }

// Unreached returns which notices wait for a leader that cannot be reached, of workers that wait (true) and go on: what each says.
func Unreached(away ...bool) (said []bool) {
	d := &desk{}
	for _, a := range away {
		what := uint8(noticeBack)
		if a {
			what = noticeAway
		}
		d.put(what, 0)
	}
	for _, n := range d.out {
		said = append(said, n.what == noticeAway)
	}
	return said
}

// Unsaid is how many notices wait for the leader.
func (j *Job) Unsaid() int { return len(j.shares[0].quorum.desk.out) }
