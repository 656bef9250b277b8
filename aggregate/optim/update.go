package optim

import "fmt"

// Update runs one step of a rule over len(w) elements. It sums grads in index order, updates w and the states in place and writes
// the result to out, unless out is nil. The result is the new weight. For [Sum], whose w may be nil, it is the scaled sum, and for
// [LAMB] the step. A missing state or arrays of different lengths panic.
func Update(r Rule, k *Scalars, w []float32, states [MaxStates][]float32, grads [][]float32, out []float32) {
	n := len(grads[0])
	check := func(what string, a []float32, needed bool) {
		if len(a) != n && (needed || a != nil) {
			panic(fmt.Sprintf("optim: %v: %s has %d elements, the gradient %d", r, what, len(a), n))
		}
	}
	for _, g := range grads {
		check("a gradient", g, true)
	}
	check("w", w, r != Sum)
	check("out", out, false)
	form := &table[r.form(k[KMomentum])]
	for i, s := range states {
		check("a state", s, i < form.states)
	}
	var e element
	for i := range n {
		g := grads[0][i]
		for _, more := range grads[1:] {
			g += more[i]
		}
		e = element{}
		if w != nil {
			e.w = w[i]
		}
		for j := range form.states {
			e.s[j] = states[j][i]
		}
		result := form.step(&e, k, mul(k[KScale], g))
		if r.Updates() {
			w[i] = e.w
		}
		for j := range form.states {
			states[j][i] = e.s[j]
		}
		if out != nil {
			out[i] = result
		}
	}
}
