// Package planner predicts how long several aggregators take to reduce among themselves. It is pure. A [Cluster] goes in, the
// bytes on every link and the time of a step come out, for every shape, and [Cluster.Choose] takes the fastest, or [Links.Choose]
// by links that were measured.
//
// # Words
//
// A rack has workers and one aggregator at its top. Racks are joined by uplinks, pods of racks by pod uplinks. R is the number of
// racks, W of workers in each, P of pods, Q = R/P of racks in each pod, M the bytes of the model on the wire. Rates are bytes per
// second and direction, and every link is full duplex.
//
// # Cost
//
// A step streams: chunks follow each other, and no layer waits for another. So it takes
//
//	max over links (bytes / rate)  +  fill
//
// where fill is the time of the last chunk alone, after every link is done with the others: two hops in the rack and the shape's
// hops across the core, each with its latency and one chunk's serialization, and one fold per aggregator on the way. The bytes are
// [Cluster.Loads], closed formulas. The tests of lab/study/transfers count them again, along the routes that the reducer takes.
package planner
