package job

import (
	"math"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/api"
)

func TestMultipliersAreFiniteAndNotNegative(t *testing.T) {
	for _, c := range []struct {
		lr, wd float64
		ok     bool
	}{
		{0, 0, true},
		{2, 0.5, true},
		{-1, 1, false},
		{1, -1, false},
		{math.Inf(1), 1, false},
		{1, math.Inf(1), false},
		{math.NaN(), 1, false},
		{1, math.NaN(), false},
	} {
		_, err := parseTensors([]*api.Tensor{{Name: "w", Shape: []uint64{1}, Dtype: "f32", LrMult: &c.lr, WdMult: &c.wd}})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), `tensor "w": multipliers`) {
			t.Errorf("multipliers %v and %v: %v, want them taken: %v", c.lr, c.wd, err, c.ok)
		}
	}
}
