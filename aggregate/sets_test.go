package aggregate_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

var allProviders = []string{"sim", "shm", "tcp"}

// Every update contains exactly the whole gradients that the policy chose, in its order, whatever the order of arrival.
func TestSetsEqualPlainGoBitForBit(t *testing.T) {
	providers := allProviders
	if testing.Short() {
		providers = providers[1:2]
	}
	for _, provider := range providers {
		for i, text := range []string{
			"bsp", "k-bsp:k=2", "backup:b=1", "k-asp:k=2", "k-batch-asp:k=3", "k-batch-bsp:k=3", "softsync:m=1", "softsync:m=2,factor=off",
		} {
			t.Run(provider+" "+text, func(t *testing.T) {
				s := newSetRack(t, provider, 4, momentumJob(t, text), uint64(i+1))
				s.train(8, false, 1, 0.5, 0.9, 0.1)
				s.same("the replay", s.replay())
			})
		}
	}
}

// Under a policy that can do without a worker the others continue when one is lost, at any point of a step, and updates have the
// decided gradients, bit for bit.
func TestSetsGoOnWithoutALostWorker(t *testing.T) {
	void := 0
	for _, provider := range allProviders {
		for i, text := range []string{"backup:b=1", "k-bsp:k=2", "k-asp:k=2", "k-batch-asp:k=3", "k-batch-bsp:k=3", "softsync:m=2"} {
			tries := 3
			if provider != "sim" {
				if tries = 1; i%3 > 0 { // the machine is the same over all
					continue
				}
			}
			for try := range tries {
				t.Run(fmt.Sprintf("%s %s %d", provider, text, try), func(t *testing.T) {
					s := newSetRack(t, provider, 4, momentumJob(t, text), uint64(10*try+i+1))
					for _, w := range s.workers {
						w.until, w.rests = 1e6, false
					}
					lost := s.workers[3] // after its push, after the end of its step, and after its release
					s.until([]float64{1, 0.5, 0.9, 0.6}, func() bool { return lost.step > 1 && lost.part == (try+1)%3 })
					lost.lost = true
					if !s.Job.Lose(lost.Rank, errors.New("killed")) {
						t.Fatal(s.picture())
					}
					last := uint64(0)
					for _, w := range s.workers {
						last = max(last, w.step)
					}
					s.train(last+5, false, 1, 0.5, 0.9, 0)
					s.same("the replay", s.replay())
					for _, a := range s.decided {
						if a.Kind == policy.Cancel {
							void++
						}
					}
				})
			}
		}
	}
	if void == 0 && !raceEnabled { // over real transports that is by chance
		t.Error("no worker was lost with a part of its step in a set")
	}
}

// Policies that are equal for these parameters give equal bits.
func TestPoliciesThatAreOneGiveTheSameBits(t *testing.T) {
	const steps = 6
	for _, family := range []struct {
		turns    bool // one worker after another
		policies []string
	}{
		{false, []string{"bsp", "k-bsp:k=4", "k-asp:k=4", "backup:b=0", "strategy-switch:at=1,steps=6"}},
		{true, []string{"asp", "k-asp:k=1", "k-batch-asp:k=1", "softsync:m=4,factor=off", "ssp:s=none", "strategy-switch:at=0,steps=6"}},
		{true, []string{"k-batch-asp:k=2", "softsync:m=2,factor=off"}},
		{true, []string{"ssp:s=2", "lagtuner:sl=2,su=2"}},
	} {
		providers := allProviders
		if testing.Short() {
			providers = providers[:1]
		}
		for _, provider := range providers {
			var first [][]float32
			for _, text := range family.policies {
				t.Run(fmt.Sprintf("%s %s", provider, text), func(t *testing.T) {
					s := newSetRack(t, provider, 4, momentumJob(t, text), 3)
					if family.turns {
						s.trainInTurns(steps, false)
					} else {
						s.train(steps, false, 0.2, 1, 0.6, 0.9)
					}
					if first == nil {
						first = s.replay()
					}
					s.same(family.policies[0], first)
				})
			}
		}
	}
}

// A set of all workers gives the bits of a synchronous job.
func TestBSPEqualsAnEagerJobBitForBit(t *testing.T) {
	s := newSetRack(t, "shm", 4, momentumJob(t, "bsp"), 1)
	s.train(5, false, 1, 1, 1, 1)
	job := s.Config.Job
	ref := racktest.NewReference(aggregate.Eager, job.Rule, job.Hyper, chunk.F32, zeros())
	for step := range uint64(5) {
		var grads [][][]float32
		for rank := range s.workers {
			grads = append(grads, rough(rank, step))
		}
		ref.Step(grads)
	}
	s.same("an eager job's reference", ref.W)
}

// Strategy-Switch keeps the optimizer's state, so momentum continues.
func TestStrategySwitchGoesOnFromTheStateThatThereIs(t *testing.T) {
	for _, provider := range allProviders {
		t.Run(provider, func(t *testing.T) {
			s := newSetRack(t, provider, 4, momentumJob(t, "strategy-switch:at=0.5,steps=8"), 2)
			s.train(4, true, 1, 0.3, 0.7, 0.5)
			if got := s.Job.Gate.Spec().String(); got != "asp" {
				t.Fatalf("after half of the steps the policy is %s", got)
			}
			s.trainInTurns(8, false)
			if len(s.decided) != 4+4*4 {
				t.Errorf("%d updates were made", len(s.decided))
			}
			s.same("the replay", s.replay())
		})
	}
}

// The empirical rule switches at the next update after the reported loss has settled.
func TestStrategySwitchFollowsTheLossThatIsReported(t *testing.T) {
	s := newSetRack(t, "sim", 4, momentumJob(t, "strategy-switch"), 2)
	for epoch, loss := range []float64{.4, .3998, .3997, .3996, .3995, .3994} {
		s.train(uint64(epoch)+1, true, 1, 0.3, 0.7, 0.5)
		if got := s.Job.Gate.Spec().Name(); got != "strategy-switch" {
			t.Fatalf("after %d losses the policy is %s", epoch, got)
		}
		if err := s.Job.Gate.Loss(1, loss, s.Job.Now()); err != nil {
			t.Fatal(err)
		}
	}
	s.train(7, true, 1, 1, 1, 1)
	if got := s.Job.Gate.Spec().String(); got != "asp" {
		t.Fatalf("after six losses that hardly differ the policy is %s", got)
	}
	s.trainInTurns(9, false)
	s.same("the replay", s.replay())
}

// A job that began with sets may change to any policy and back, at any time.
func TestPoliciesChangeLive(t *testing.T) {
	changes := []string{
		"k-batch-asp:k=3", "backup:b=1", "softsync:m=2", "k-asp:k=2", "asp", "k-batch-bsp:k=2", "ssp:s=1", "lagtuner:sl=1,su=3", "bsp",
	}
	for _, provider := range allProviders {
		t.Run(provider, func(t *testing.T) {
			s := newSetRack(t, provider, 4, momentumJob(t, "bsp"), 4)
			for i, text := range changes {
				rounds := s.chance.IntN(200)
				for _, w := range s.workers {
					w.until, w.rests = 1e6, false
				}
				n := 0
				s.until([]float64{1, 0.4, 0.8, 0.2}, func() bool { n++; return n > rounds })
				if _, err := s.Job.Gate.Change(spec(t, text), s.Job.Now()); err != nil {
					t.Fatalf("change %d: %v", i, err)
				}
				s.until([]float64{1, 0.4, 0.8, 0.2}, func() bool { return s.Job.Gate.Spec() == spec(t, text) })
			}
			last := uint64(0)
			for _, w := range s.workers {
				last = max(last, w.step)
			}
			s.train(last+3, false, 1, 1, 1, 1)
		})
	}
}
