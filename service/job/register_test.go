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

func TestRacksCompareAllThatThePlanHasNot(t *testing.T) {
	declare := func(change func(*api.Tensor)) string {
		lr, wd := 1.0, 1.0
		d := &api.Tensor{Name: "w", Shape: []uint64{4, 2}, Dtype: "f32", Sparse: true, LrMult: &lr, WdMult: &wd}
		change(d)
		ts, err := parseTensors([]*api.Tensor{d})
		if err != nil {
			t.Fatal(err)
		}
		return digest(make([]byte, 4), ts)
	}
	same := declare(func(*api.Tensor) {})
	for what, change := range map[string]func(*api.Tensor){
		"name":     func(d *api.Tensor) { d.Name = "v" },
		"shape":    func(d *api.Tensor) { d.Shape = []uint64{4, 2, 1} },
		"lr":       func(d *api.Tensor) { *d.LrMult = 2 },
		"wd":       func(d *api.Tensor) { *d.WdMult = 2 },
		"standard": func(d *api.Tensor) { d.Standard = true },
	} {
		if declare(change) == same {
			t.Errorf("racks do not tell tensors with another %s apart", what)
		}
	}
	if declare(func(*api.Tensor) {}) != same {
		t.Error("a tensor differs from itself")
	}
}

func TestRowsOfWhatHasNoneAreRefused(t *testing.T) {
	for _, c := range []struct {
		shape            []uint64
		sparse, standard bool
		width            uint32
		want             string
	}{
		{[]uint64{5, 3, 2}, true, true, 6, ""},
		{[]uint64{5}, true, false, 1, ""},
		{[]uint64{5, 3}, false, false, 0, ""},
		{nil, true, false, 0, `tensor "w" is sparse, and a scalar has no rows: declare it dense`},
		{[]uint64{5, 3}, false, true, 0, `tensor "w" is dense, and standard is about rows of sparse tensors`},
		{[]uint64{2, 1 << 40}, true, false, math.MaxUint32, ""}, // refused as larger than a chunk
		{[]uint64{0, 3}, true, false, 0, ""},                    // refused as a dense one would be
	} {
		ts, err := parseTensors([]*api.Tensor{{Name: "w", Shape: c.shape, Dtype: "f32", Sparse: c.sparse, Standard: c.standard}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("shape %v, sparse %t, standard %t: %v, want %q", c.shape, c.sparse, c.standard, err, c.want)
		}
		if err == nil && (ts[0].Width != c.width || ts[0].Standard != c.standard) {
			t.Errorf("shape %v: %+v, want rows of %d", c.shape, ts[0], c.width)
		}
	}
}
