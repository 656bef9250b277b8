package view

import "net/url"

// Keys names the keys of a cluster's membership.
type Keys struct {
	Prefix string // of all of them
}

// NewKeys returns the keys of the cluster of a name.
func NewKeys(cluster string) Keys { return Keys{"/rackweave/" + url.PathEscape(cluster) + "/"} }

// Leader returns the key of the claim on deciding.
func (k Keys) Leader() string { return k.Prefix + "leader" }

// Plan returns the key of the decision.
func (k Keys) Plan() string { return k.Prefix + "plan" }

// Rack returns the key of the claim on a rack.
func (k Keys) Rack(name string) string { return k.racks() + url.PathEscape(name) }

func (k Keys) racks() string { return k.Prefix + "racks/" }
