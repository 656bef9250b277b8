// Package view reads the keys of a cluster in etcd, and decides the plan that they should hold. It is pure, and knows etcd only as
// keys, values and revisions: [github.com/rackweave/rackweave/service/membership] has the protocol, and carries it out.
package view
