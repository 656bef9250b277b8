package aggregate

import (
	"errors"
	"testing"
	"testing/synctest"
)

func TestALostWorkerIsToBlameWhereNobodyElseIsSoon(t *testing.T) {
	for _, tc := range []struct {
		what      string
		spread    bool
		explained bool
		want      int
	}{
		{"one aggregator", false, true, 0},
		{"several, and another worker is named", true, true, 1},
		{"several, and nobody is named", true, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fate{failed: make(chan struct{}), notify: func() {}}
			if tc.spread {
				f.patience = lossPatience
			}
			f.lost(0, errors.New("its connection broke"))
			if tc.explained {
				f.fail(1, errors.New("it gave up"))
			}
			<-f.failed
			if got := f.failure.Load().Rank; got != tc.want {
				t.Errorf("%s: worker %d is to blame, want %d", tc.what, got, tc.want)
			}
		})
	}
}
