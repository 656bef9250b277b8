// Package outer carries out the rounds of racks that train apart (DiLoCo, arXiv 2311.08105). Between rounds a rack steps its own
// parameters. In a round it hands up how far it has come, and every rack's parameters become the result of an outer optimizer.
//
// Behind a chunk's parameters and states lie the parameters of the last round, and at the chunk's owner the outer optimizer's
// parameters and states, which are never rounded to the wire's type.
package outer
