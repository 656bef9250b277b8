// Package service is the aggregator's port: it speaks gRPC, Connect and plain HTTP+JSON (package api has the schema), with TLS or
// without, finds out who calls, bounds what calls take, and hands them on. Its rooms do the rest:
//
//	rpc         errors, names and deadlines of calls
//	engine      devices and the aggregating engines on them
//	job         jobs and members: joining, registration, barriers
//	observe     parameters of running jobs, for evaluators
//	checkpoint  saved and retained state
//	cluster     the racks of a job
//	data        rows of training sets for the workers of jobs
//
// Gradients never pass here.
//
// # Locks
//
// A goroutine that holds a lock takes only locks that come later:
//
//	Service.calls       read-locked by every call
//	Job.Model           to use tensors, or to add to them, save or restore
//	Job.memory          to use the job's memory, or to free it
//	Table.mu            jobs, sessions
//	Job.mu              members, collective calls
//	hub.mu              runs over several racks, links (package cluster)
//	Store.mu            retained states (package checkpoint)
//	retained.mu         one such state, read-locked while it is read
//	hub.probing         a measurement of links
//
// The locks of packages data and engine, of racks.Board, quota, door and membership are leaves: whoever holds one takes none of
// these. Model, memory and retained.mu are held while lanes copy and other racks answer, the others never across a wait. A call
// that would make two racks wait for each other is refused (package checkpoint).
package service
