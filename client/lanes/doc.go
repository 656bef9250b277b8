// Package lanes is a worker's connections to an aggregator: a queue pair to every lane, over one NIC or several, memory
// registered with all of them, and the C worker that drives them. It keeps every lane connected over the path that package
// failover chooses.
//
// How the aggregator is asked is a [Control]: package client asks over HTTP, tests and the simulation in process.
//
// Call [Open] and [Session.Attach] in this order, and [Session.Close] at last. After Attach one goroutine may call
// [Session.Advance] and [Session.Look] while another calls [Session.Allocate]. WorkerLink, AggregatorLinks, Broke, Holds, Path and
// Failovers may be called by any.
//
// All memory is registered with every NIC at the start, and a connection uses the keys of the NIC it is on. When it moves, the
// worker sends the keys of its memory for the new NIC, and messages that wait are aimed anew by address. That is rare, so it may
// search.
package lanes
