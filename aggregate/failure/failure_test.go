package failure

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
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
			grace := time.Duration(0)
			if tc.spread {
				grace = time.Second
			}
			f := NewLatch(func() {}, grace)
			f.Lost(0, errors.New("its connection broke"))
			if tc.explained {
				f.Fail(1, errors.New("it gave up"))
			}
			<-f.Failed()
			if got := f.Failure().Rank; got != tc.want {
				t.Errorf("%s: worker %d is to blame, want %d", tc.what, got, tc.want)
			}
		})
	}
}
