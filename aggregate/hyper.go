package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

// A control record has eight places for hyper-parameters. Rules with two betas keep beta 1 where others keep the momentum;
// RMSprop keeps alpha where others keep beta 2; the extra place is the dampening.

func hasBetas(r optim.Rule) bool { return r.Defaults().Beta1 != 0 }

func hasAlpha(r optim.Rule) bool { return r.Defaults().Alpha != 0 }

// HyperOf reads a rule's hyper-parameters from a control record.
func HyperOf(r optim.Rule, rec *chunk.TensorRecord) optim.Hyper {
	h := optim.Hyper{
		LR: float64(rec.LR), WD: float64(rec.WD), Scale: float64(rec.Scale), Clip: float64(rec.Clip), Eps: float64(rec.Eps),
		Dampening: float64(rec.Extra),
	}
	switch {
	case hasBetas(r):
		h.Beta1, h.Beta2 = float64(rec.Momentum), float64(rec.Beta2)
	case hasAlpha(r):
		h.Momentum, h.Alpha = float64(rec.Momentum), float64(rec.Beta2)
	default:
		h.Momentum = float64(rec.Momentum)
	}
	return h
}

// RecordOf writes hyper-parameters into the places that [HyperOf] reads, rounded to f32: LR, WD, Scale, Clip, Momentum,
// Beta2, Eps, Extra.
func RecordOf(r optim.Rule, h optim.Hyper) [8]float32 {
	rec := [8]float32{float32(h.LR), float32(h.WD), float32(h.Scale), float32(h.Clip), float32(h.Momentum), 0, float32(h.Eps), float32(h.Dampening)}
	switch {
	case hasBetas(r):
		rec[4], rec[5] = float32(h.Beta1), float32(h.Beta2)
	case hasAlpha(r):
		rec[5] = float32(h.Alpha)
	}
	return rec
}

// Rounded returns the hyper-parameters as they are after a control record carried them.
func Rounded(r optim.Rule, h optim.Hyper) optim.Hyper {
	v := RecordOf(r, h)
	return HyperOf(r, &chunk.TensorRecord{LR: v[0], WD: v[1], Scale: v[2], Clip: v[3], Momentum: v[4], Beta2: v[5], Eps: v[6], Extra: v[7]})
}
