package racks

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestWhatIsWithdrawnMayHaveBeenTaken(t *testing.T) {
	b := NewBoard()
	b.Begin("job", "run")
	for _, stage := range []string{"taken", "untaken"} {
		b.Post("run", stage, nil, []string{"other"})
	}
	if _, err := b.Take(t.Context(), Question{From: "other", Job: "job", Run: "run", Stage: "taken", Nonce: "nonce"}); err != nil {
		t.Fatalf("what was posted is not there: %v", err)
	}
	for _, tc := range []struct {
		stage string
		want  bool
	}{{"taken", true}, {"untaken", false}, {"untaken", true}} {
		if taken := b.Withdraw("run", tc.stage); taken != tc.want {
			t.Errorf("%s may have been taken: %t, want %t", tc.stage, taken, tc.want)
		}
	}
}

func TestWhyARunWasGivenUpIsToldToRunsThatBeganBefore(t *testing.T) {
	b := NewBoard()
	before := time.Now()
	b.Begin("job", "run1")
	b.Post("run1", "form", []byte("run1"), []string{"early", "late"})
	waiting := make(chan error)
	go func() {
		_, err := b.Take(t.Context(), Question{From: "early", Job: "job", Run: "run1", Stage: "ends", Nonce: "1"})
		waiting <- err
	}()
	b.GiveUp("run1", "a reason", []string{"theirs"})
	if err := <-waiting; !told(err) {
		t.Errorf("who waits for the run: %v", err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ask := func(run, asker string, since time.Time) (string, error) {
		payload, err := b.Take(soon, Question{From: "late", Job: "job", Run: run, Stage: "form", Nonce: "2", Asker: asker, Since: since})
		return string(payload), err
	}
	if _, err := ask("run1", "", time.Now()); !told(err) {
		t.Errorf("who asks for the run afterwards: %v", err)
	}
	if _, err := ask("", "", before); !told(err) {
		t.Errorf("who began before: %v", err)
	}
	if _, err := ask("", "theirs", time.Now()); !told(err) {
		t.Errorf("whose run it was to start with: %v", err)
	}
	if _, err := ask("", "", time.Now()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who asks for another run: %v", err)
	}
	b.Begin("job", "run2")
	b.Post("run2", "form", []byte("run2"), []string{"late"})
	if got, err := ask("", "", before); got != "run2" || err != nil {
		t.Errorf("the next run says %q, %v", got, err)
	}
}

func told(err error) bool {
	why := new(GivenUp)
	return errors.As(err, &why) && why.Why == "a reason"
}

func TestARackThatAsksForNothingIsNamedBeforeTooMuchWaitsForIt(t *testing.T) {
	b := NewBoard()
	b.Begin("job", "run")
	b.Begin("other", "run2")
	for n := range mostUntaken {
		if rack, _ := b.Behind("run"); rack != "" {
			t.Fatalf("after %d posts rack %q is behind", n, rack)
		}
		stage := fmt.Sprint("barrier ", n)
		b.Post("run", stage, nil, []string{"asks", "silent"})
		if _, err := b.Take(t.Context(), Question{From: "asks", Job: "job", Run: "run", Stage: stage, Nonce: stage}); err != nil {
			t.Fatal(err)
		}
	}
	if rack, n := b.Behind("run"); rack != "silent" || n != mostUntaken {
		t.Errorf("rack %q is behind by %d, want the silent one by %d", rack, n, mostUntaken)
	}
	if rack, _ := b.Behind("run2"); rack != "" {
		t.Errorf("of another job rack %q is behind", rack)
	}
}

func TestWhatIsPostedAfterItsRunHasEndedIsDropped(t *testing.T) {
	b := NewBoard()
	b.Begin("job", "run")
	b.End("run")
	b.Post("run", "late", nil, []string{"other"})
	if len(b.runs) > 0 {
		t.Errorf("the board holds %v for ever", b.runs)
	}
	q := Question{From: "other", Job: "job", Run: "run", Stage: "late", Nonce: "1"}
	if _, err := b.Take(t.Context(), q); !errors.Is(err, ErrEnded) {
		t.Errorf("who asks for it gets %v", err)
	}
}
