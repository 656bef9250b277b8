// Package launch starts processes on this machine and ends them together: the workers of a job, and servers for them.
//
// Every process has a process group of its own. A group ends with that process, and the process ends with this one, in any event. A
// process that leaves its group (setsid(2)) is not ended.
package launch
