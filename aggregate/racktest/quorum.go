package racktest

import "github.com/rackweave/rackweave/hierarchy"

// Replay replays, from the words of its leader, a run in which racks may miss meetings. It takes so many steps of each rack, with
// gradients by worker and tensor, and returns what a pushpull answers, by rack, step and tensor. begin makes the cluster.
func Replay(words []hierarchy.Word, steps int, begin func() *Outer, gradients func(rack, step int) [][][]float32) [][][][]float32 {
	var out [][][][]float32
	for fragment := range max(begin().Fragments, 1) {
		run := &replay{Outer: begin(), fragment: fragment, steps: steps, gradients: gradients}
		run.begin()
		for _, w := range words {
			if w.Kind == hierarchy.Over || w.Fragment == fragment {
				run.take(w)
			}
		}
		for r := range run.racks {
			run.advance(r, steps)
		}
		if out == nil {
			out = run.out
			continue
		}
		run.each(func(tensor, elem int) {
			for r := range out {
				for n := range out[r] {
					out[r][n][tensor][elem] = run.out[r][n][tensor][elem]
				}
			}
		})
	}
	return out
}

// replay is the run of one fragment: the elements of others take part, and are not looked at.
type replay struct {
	*Outer
	fragment  int
	steps     int
	gradients func(rack, step int) [][][]float32
	at        []int           // by rack, steps taken
	periods   []int           // by rack, since its last meeting
	kept      [][][]float32   // by rack and tensor, the result of the last meeting, where the rack has missed it; else nil
	out       [][][][]float32 // by rack, step and tensor
}

func (c *replay) begin() {
	n := len(c.racks)
	c.at, c.periods, c.kept, c.out = make([]int, n), make([]int, n), make([][][]float32, n), make([][][][]float32, n)
	for r := range n {
		c.periods[r] = 1
	}
}

// each calls f for every element of the fragment.
func (c *replay) each(f func(tensor, elem int)) {
	for t, w := range c.racks[0].W {
		for i := range w {
			if c.Fragment(c.chunk(t, i)) == c.fragment {
				f(t, i)
			}
		}
	}
}

// advance takes a rack's steps up to one.
func (c *replay) advance(rack, step int) {
	for ; c.at[rack] < step; c.at[rack]++ {
		c.out[rack] = append(c.out[rack], c.racks[rack].Step(c.gradients(rack, c.at[rack])))
	}
}

// come takes a rack's steps up to its next meeting, and reports whether it comes to one.
func (c *replay) come(rack int) bool {
	for step := c.at[rack] + 1; step <= c.steps; step++ {
		if c.Due(c.fragment, uint32(step)) {
			c.advance(rack, step)
			return true
		}
	}
	return false
}

// become makes values a rack's parameters.
func (c *replay) become(rack int, values [][]float32) {
	c.each(func(t, i int) {
		c.racks[rack].W[t][i], c.start[rack][t][i], c.out[rack][c.at[rack]-1][t][i] = values[t][i], values[t][i], values[t][i]
	})
	c.periods[rack], c.kept[rack] = 1, nil
}

func (c *replay) take(w hierarchy.Word) {
	switch w.Kind {
	case hierarchy.Late:
		c.come(w.Rack)
		c.become(w.Rack, c.kept[w.Rack])
	case hierarchy.Alone:
		c.come(w.Rack)
		c.periods[w.Rack]++
	case hierarchy.Over:
		for r := range c.racks {
			if c.kept[r] != nil && c.come(r) {
				c.become(r, c.kept[r])
			}
		}
	case hierarchy.Held:
		c.hold(w.Racks)
	}
}

// hold holds a meeting of these racks.
func (c *replay) hold(racks uint64) {
	weights, total := make([]int, len(c.racks)), 0
	for r := range c.racks {
		if racks>>r&1 == 1 {
			c.come(r)
			weights[r] = c.workers[r] * c.periods[r]
			total += weights[r]
		}
	}
	c.outer.Hyper.Scale = 1 / float64(total)
	var met [][]float32
	for t := range c.outer.W {
		met = append(met, c.outer.update(t, c.rows(t, weights)))
	}
	for r := range c.racks {
		if racks>>r&1 == 1 {
			c.become(r, met)
		} else {
			c.kept[r] = met
		}
	}
}
