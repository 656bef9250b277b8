// Package view reads what the keys of a cluster say in etcd, and decides what they should say. It is pure, and knows etcd only as
// keys, values and revisions: [github.com/rackweave/rackweave/service/membership] has the protocol, and carries it out.
package view
