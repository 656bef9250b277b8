package chunk

import "slices"

// NICs returns how many NICs lanes have, counting from 0.
func NICs(lanes []Lane) (n int) {
	for _, l := range lanes {
		n = max(n, l.NIC+1)
	}
	return n
}

// Spread returns the lanes of so many aggregators that have these each: those of the first come first, and NICs are numbered
// through. Numbers of cores differ from one machine to another, so places stand for them. What other plans have placed there is
// left out: each aggregator knows only its own.
func Spread(lanes []Lane, aggregators int) []Lane {
	nics := NICs(lanes)
	var out []Lane
	for a := range aggregators {
		own := slices.Clone(lanes)
		for i := range own {
			own[i].NIC += a * nics
			own[i].Core, own[i].Load = i, 0
		}
		out = append(out, own...)
	}
	return out
}
