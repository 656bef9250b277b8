// Package data deals the rows of training sets to the workers of jobs. The dealers of the pure room of the same name decide. This
// room keeps sets, sessions and orders around them, and names rows. It does not know how workers call: a Caller identifies one.
//
// All workers of a job open a set alike. A worker's session lasts from Open until the worker is gone or opens the set again. Its
// leases return then. Synchronous workers number their steps alike, so when one that has begun opens the set again, all must: what
// nobody has applied is dealt again, and calls with the other sessions get ErrReopen.
package data
