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
	window   = 300 * time.Millisecond // least of each
	leastOf  = 100                    // rounds of the victim in it
	maxWorse = 1.5                    // median over pairs of windows: p99 attacked, to p99 while the decoy is
)

// Attack is a program that tries to hurt whoever else uses an aggregator. It returns an error if it got what it should not.
type Attack struct {
	Name  string
	Run   func(context.Context, *Aggregator) error
	Flags []string // of the aggregator
}

// Beside runs an attack on an aggregator while a victim's job exchanges gradients there. It returns an error unless the victim ends
// bit-exact, the process is small again afterwards, answers metrics and lets a new job in, and, over so many pairs of windows, the
// victim's worst times are at most half as long again. If pairs is 0, nothing is measured. The report describes the measurements.
func (t Attack) Beside(ctx context.Context, binary string, pairs int) (report string, err error) {
	a, err := Start(ctx, binary, t.Flags...)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, a.Stop()) }()
	v, err := Join(ctx, a.URL, "victim", "victim's", "tcp")
	if err != nil {
		return "", err
	}
	if pairs == 0 {
		_, err = t.during(ctx, v, a)
	} else {
		report, err = t.compare(ctx, v, a, binary, pairs)
	}
	return report, errors.Join(err, a.serves(ctx), v.Leave(), a.Recovers(256<<20))
}

// compare attacks a decoy and the victim's aggregator by turns.
func (t Attack) compare(ctx context.Context, v *Victim, a *Aggregator, binary string, pairs int) (report string, err error) {
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
	var worse []float64
	for range pairs {
		control, err := t.during(ctx, v, decoy)
		if err != nil {
			return "", fmt.Errorf("on the decoy: %w", err)
		}
		attacked, err := t.during(ctx, v, a)
		if err != nil {
			return "", err
		}
		worse = append(worse, float64(attacked)/float64(control))
	}
	slices.Sort(worse)
	median := worse[pairs/2]
	report = fmt.Sprintf("the victim's p99 is %.2f times that while another aggregator is attacked, the median of %.2f", median, worse)
	if median > maxWorse {
		return report, fmt.Errorf("%s: want at most %v", report, maxWorse)
	}
	return report, nil
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
