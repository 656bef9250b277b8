// Package racks is what an aggregator knows of the other racks of its cluster: who they are, which of a job's workers are where,
// and what the aggregators say to each other while a job begins.
package racks

import (
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/rackweave/rackweave/hierarchy"
)

// Rack is one rack of a cluster.
type Rack struct {
	Name string `yaml:"name"`
	URL  string `yaml:"url"`  // of its aggregator's control plane
	Pod  string `yaml:"pod"`  // racks of a pod follow each other
	CA   string `yaml:"ca"`   // file with the certificates to trust, for https
	Size int    `yaml:"size"` // its share of a job's workers, against the others'; 0: 1
}

// Cluster is the racks whose aggregators reduce among themselves, in the order in which their sums are added. All aggregators have
// the same.
type Cluster struct {
	Racks []Rack `yaml:"racks"`
	// Shape is auto, sharded, ring, chain, root or pods.
	Shape string `yaml:"shape"`
	// Secret is shared by the aggregators, and by nobody else.
	Secret string `yaml:"secret"`
	Own    string `yaml:"-"` // the name of this aggregator's rack
}

// minSecret is the least length of a secret.
const minSecret = 16

// ErrCluster is what every error about a cluster's configuration wraps.
var ErrCluster = errors.New("bad cluster")

// Check returns what of the cluster cannot be.
func (c *Cluster) Check() error {
	if len(c.Racks) == 0 || len(c.Racks) > hierarchy.MaxRacks {
		return fmt.Errorf("%w: %d racks: list 1 to %d", ErrCluster, len(c.Racks), hierarchy.MaxRacks)
	}
	if len(c.Secret) < minSecret {
		return fmt.Errorf("%w: a secret of %d characters: give all aggregators the same, of at least %d", ErrCluster, len(c.Secret),
			minSecret)
	}
	for i, r := range c.Racks {
		u, err := url.Parse(r.URL)
		switch {
		case r.Name == "":
			return fmt.Errorf("%w: rack %d has no name", ErrCluster, i)
		case slices.ContainsFunc(c.Racks[:i], func(o Rack) bool { return o.Name == r.Name }):
			return fmt.Errorf("%w: rack %q is listed twice", ErrCluster, r.Name)
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("%w: rack %q has URL %q: use one such as http://aggregator:7077", ErrCluster, r.Name, r.URL)
		case r.Size < 0:
			return fmt.Errorf("%w: rack %q has size %d: use a number of workers, or leave it out", ErrCluster, r.Name, r.Size)
		}
	}
	if c.Index() < 0 {
		return fmt.Errorf("%w: this aggregator is of rack %q, which is not among %v", ErrCluster, c.Own, c.Names())
	}
	_, err := c.Topology()
	return err
}

// Index is the number of this aggregator's rack.
func (c *Cluster) Index() int {
	return slices.IndexFunc(c.Racks, func(r Rack) bool { return r.Name == c.Own })
}

// Names are the racks' names.
func (c *Cluster) Names() []string {
	names := make([]string, len(c.Racks))
	for i, r := range c.Racks {
		names[i] = r.Name
	}
	return names
}

// Topology is how the aggregators reduce among themselves. Shape auto is sharded: it has the fewest bytes on the racks' uplinks and
// the fewest hops, and its windows free themselves whatever the order in which workers push.
func (c *Cluster) Topology() (hierarchy.Topology, error) {
	t := hierarchy.Topology{Racks: len(c.Racks), Pods: 1}
	for i, r := range c.Racks {
		if i > 0 && r.Pod != c.Racks[i-1].Pod {
			t.Pods++
			if slices.ContainsFunc(c.Racks[:i], func(o Rack) bool { return o.Pod == r.Pod }) {
				return t, fmt.Errorf("%w: rack %q is of pod %q, whose other racks stand apart: list a pod's racks together", ErrCluster,
					r.Name, r.Pod)
			}
		}
	}
	size := len(c.Racks) / t.Pods
	for i, r := range c.Racks {
		if r.Pod != c.Racks[min(i/size*size, len(c.Racks)-1)].Pod {
			return t, fmt.Errorf("%w: %d racks in %d pods of different sizes: declare pods of as many racks", ErrCluster, len(c.Racks), t.Pods)
		}
	}
	switch {
	case c.Shape != "" && c.Shape != "auto":
		s, err := hierarchy.ParseShape(c.Shape)
		if err != nil {
			return t, fmt.Errorf("%w: %w", ErrCluster, err)
		}
		t.Shape = s
	default:
		t.Shape = hierarchy.Sharded
	}
	if err := t.Check(); err != nil {
		return t, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	return t, nil
}

// Workers divides a job's workers among the racks by their sizes: ranks count through the racks in order.
func (c *Cluster) Workers(total int) ([]int, error) {
	if total < len(c.Racks) {
		return nil, fmt.Errorf("a job of %d workers in %d racks: use at least one in each", total, len(c.Racks))
	}
	sizes, all := make([]int, len(c.Racks)), 0
	for i, r := range c.Racks {
		sizes[i] = max(r.Size, 1)
		all += sizes[i]
	}
	workers, before, given := make([]int, len(c.Racks)), 0, 0
	for i, n := range sizes {
		before += n
		// Each rack gets at least one, and leaves one for each that follows.
		workers[i] = max(1, min(total*before/all-given, total-given-(len(sizes)-1-i)))
		given += workers[i]
	}
	return workers, nil
}
