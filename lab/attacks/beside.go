package attacks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An attack uses the same cores as its victim where both run on one machine. What it does to the victim by way of the aggregator
// is the difference to the same attack on another aggregator beside. So windows alternate: in one the decoy is attacked, in the
// next the victim's.
const (
	window     = 300 * time.Millisecond // least of each
	leastOf    = 100                    // rounds of the victim in it
	maxWindows = 12
	maxWorse   = 1.5 // p99 attacked, to p99 while the decoy is
)

// Attack is a program that tries to hurt whoever else uses an aggregator. It returns an error if it got what it should not.
type Attack struct {
	Name  string
	Run   func(context.Context, *Aggregator) error
	Flags []string // of the aggregator
}

// Beside runs an attack on an aggregator while a victim's job exchanges gradients there. It returns an error unless the victim ends
// bit-exact, its worst times are at most half as long again, the process is small again afterwards, answers metrics and lets a new
// job in. report says what was measured.
func (t Attack) Beside(ctx context.Context, binary string) (report string, err error) {
	a, err := Start(ctx, binary, t.Flags...)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, a.Stop()) }()
	decoy, err := Start(ctx, binary, t.Flags...)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, decoy.Stop()) }()
	idle, err := enrol(ctx, decoy.URL, "victim", "victim's", "tcp")
	if err != nil {
		return "", err
	}
	defer idle.close()
	v, err := Join(ctx, a.URL, "victim", "victim's", "tcp")
	if err != nil {
		return "", err
	}
	report, err = t.compare(ctx, v, a, decoy)
	return report, errors.Join(err, a.serves(ctx), v.Leave(), a.Recovers(256<<20))
}

// compare attacks the decoy and the victim's aggregator by turns, until the victim's worst times are as they should be.
func (t Attack) compare(ctx context.Context, v *Victim, a, decoy *Aggregator) (report string, err error) {
	var control, attacked []time.Duration
	for range maxWindows {
		c, err := t.during(ctx, v, decoy)
		if err != nil {
			return "", fmt.Errorf("on the decoy: %w", err)
		}
		x, err := t.during(ctx, v, a)
		if err != nil {
			return "", err
		}
		control, attacked = append(control, c), append(attacked, x)
		middle := slices.Sorted(slices.Values(control))[len(control)/2]
		report = fmt.Sprintf("the victim's p99 is %v, and %v while another aggregator is attacked, in windows by turns", attacked, control)
		if float64(x) <= maxWorse*float64(middle) {
			return report, nil
		}
	}
	return report, fmt.Errorf("%s: want one within %v of the median", report, maxWorse)
}

// during attacks an aggregator for the time of a window, and returns the victim's p99 in it.
func (t Attack) during(ctx context.Context, v *Victim, a *Aggregator) (time.Duration, error) {
	first, _ := v.Rounds(0)
	for began := time.Now(); ; {
		moveOn()
		if err := t.Run(ctx, a); err != nil {
			return 0, err
		}
		n, p99 := v.Rounds(first)
		if time.Since(began) >= window && n-first >= leastOf {
			return p99, nil
		}
		if err := v.Err(); err != nil {
			return 0, err
		}
	}
}

// serves checks that metrics are told and a new job gets in.
func (a *Aggregator) serves(ctx context.Context) error {
	if page, err := a.Metrics(ctx); err != nil {
		return fmt.Errorf("metrics: %w", err)
	} else if page == "" {
		return errors.New("metrics are empty")
	}
	next, err := Join(ctx, a.URL, "next", "", "tcp")
	if err == nil {
		err = next.Leave()
	}
	if err != nil {
		return fmt.Errorf("a new job: %w", err)
	}
	return nil
}
