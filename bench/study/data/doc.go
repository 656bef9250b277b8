// Package data measures what the ways of package [github.com/rackweave/rackweave/data] to deal rows do to learning. docs/data.md
// has the figures of the thesis that proposes them (chapter 6) beside its own.
//
// A softmax regression learns scikit-learn's digits. Every row is dealt by the dealers and orders that an aggregator uses. Time is
// virtual, in all studies but "real", whose workers train through an aggregator and sleep.
package data
