package numa

import "slices"

// coreShare is a core's reliable share of a last-level cache that it shares with other cores. Real parts have 1 to 5 MiB of it for
// each core, and parts with stacked caches 12.
const coreShare = 4 << 20

// LastLevelCache returns the bytes of this machine's last-level cache that this process can rely on (see
// [Topology.LastLevelCache]).
func LastLevelCache() int64 {
	t, err := Discover("")
	if err != nil {
		return coreShare
	}
	return t.LastLevelCache()
}

// LastLevelCache returns the bytes of a last-level cache that this process can rely on. That much data stays in the cache between
// one core's write and another's read soon after. Of several such caches the largest figure counts.
//
// The process can rely on the size that the machine reports if no hypervisor runs the machine and the process may run on every CPU
// of the cache. Otherwise others use the cache too, and a virtual machine even reports its host's size: one with two cores reports
// 480 MiB. In that case the process has 4 MiB for each core that it may run on, and at most the reported size.
func (t *Topology) LastLevelCache() int64 {
	var largest int64
	for _, c := range t.CPUs {
		if c.L3.Bytes > 0 && t.Allowed.Has(c.ID) {
			largest = max(largest, t.share(c.L3))
		}
	}
	if largest == 0 {
		return coreShare * int64(max(1, len(t.cores(t.Allowed))))
	}
	return largest
}

// share returns the bytes that this process can rely on of a cache that some of its CPUs use.
func (t *Topology) share(c Cache) int64 {
	users := c.CPUs
	if len(users) == 0 {
		users = t.Allowed
	}
	own := users.And(t.Allowed)
	if t.Hypervisor == "" && slices.Equal(own, users) {
		return c.Bytes
	}
	return min(c.Bytes, coreShare*int64(len(t.cores(own))))
}
