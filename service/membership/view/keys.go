package view

import "net/url"

// Keys are where a cluster's membership is kept.
type Keys struct {
	Prefix string // of all of them
}

// NewKeys returns the keys of the cluster of a name.
func NewKeys(cluster string) Keys { return Keys{"/rackweave/" + url.PathEscape(cluster) + "/"} }

// Leader is the key of the claim on deciding.
func (k Keys) Leader() string { return k.Prefix + "leader" }

// Plan is the key of the decision.
func (k Keys) Plan() string { return k.Prefix + "plan" }

// Rack is the key of the claim on a rack.
func (k Keys) Rack(name string) string { return k.racks() + url.PathEscape(name) }

func (k Keys) racks() string { return k.Prefix + "racks/" }
