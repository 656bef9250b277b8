package chunk

import "slices"

// NICs returns the number of NICs of lanes, counted from 0.
func NICs(lanes []Lane) (n int) {
	for _, l := range lanes {
		n = max(n, l.NIC+1)
	}
	return n
}

// Spread returns the lanes of so many aggregators that each have these lanes. The lanes of the first aggregator come first, and
// NICs are numbered consecutively. Numbers of cores differ between machines, so lanes' positions replace them. Loads of other plans
// are dropped, because each aggregator knows only its own.
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
