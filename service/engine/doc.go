// Package engine opens the devices of the providers that an aggregator serves, starts an [aggregate.Engine] for each, and follows
// the links of their NICs.
package engine
