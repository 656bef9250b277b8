// Package api is the control plane's schema (job.proto) as generated Go, and what client and server must compute alike.
// service/generate.sh makes the generated files.
package api

// BuddyName is the name by which a worker restores what racks keep of each other's state, as if it were a checkpoint.
const BuddyName = "buddy"
