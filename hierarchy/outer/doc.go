// Package outer describes the outer optimizer of racks that train independently and synchronize every few steps (DiLoCo, arXiv
// 2311.08105): its rule, and the steps at which each chunk is due. It is pure. [github.com/rackweave/rackweave/aggregate/outer]
// carries it out.
package outer
