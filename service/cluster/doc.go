// Package cluster is an aggregator's part in a cluster of racks. A [Rendezvous] connects a job with the same job of the
// other racks: when it forms, at registrations and barriers, and when it ends. The package places workers in racks, follows the
// plan where etcd keeps the membership, measures the links between racks, and chooses a job's shape by them.
package cluster
