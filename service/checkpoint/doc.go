// Package checkpoint saves and restores the state of jobs: parameters and optimizer state. It answers
// questions of workers and other racks about the state, and retains that of a failed job for the next run if racks have buddies.
//
// A job over several racks is saved whole by one of them, which asks the others by [Racks]. A job that is spread over several
// aggregators is saved in parts: each aggregator writes DIR/JOB/NAME.AofB-ID.rwck and then the manifest, DIR/JOB/NAME.rwck. The
// manifest at the first aggregator decides which part files are the checkpoint, so that a save that fails leaves the one before.
package checkpoint
