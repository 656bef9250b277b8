// Package launch starts processes on this machine and ends them together: the workers of a job, and an aggregator for them.
//
// Every process leads a process group of its own. A group ends with its leader, and a leader ends with this process, however that
// happens.
package launch
