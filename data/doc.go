// Package data decides which rows of a training set each worker trains on, and in which order. It is pure: rows are numbers, and
// nothing here reads them.
//
// An [Order] is the sequence of an epoch. Rows may be in groups, such as the classes of their labels or clusters of what they look
// like, and the order then spreads each group evenly over the epoch. It needs no table, so an epoch of any size begins, or
// goes on from any position, at once.
//
// A [Deal] is a division of all rows into the shards of workers, made once. A [Ledger] deals positions of the order while workers
// train: a faster worker takes more. A [Fixed] division of the order gives each step and rank its positions without a ledger.
// [Batches] are sizes that follow the workers' speeds.
//
// The static divisions follow chapter 6 of the thesis that proposes Strategy-Switch. Where it leaves a gap, the comment of the
// function gives the reading.
package data
