// Package report holds what a benchmark says: latencies, results in the terms of nccl-tests, comparisons with
// peers, the machine they were measured on, and their forms as table, JSON and plot.
//
// Times are microseconds, bandwidths GB/s (10^9 bytes), sizes bytes. All bytes are bytes on the wire: a gradient of a
// million bf16 elements has two million bytes.
package report
