package planner

import (
	"cmp"
	"fmt"

	"github.com/rackweave/rackweave/hierarchy"
)

// Cluster describes the machines and links of a job. Rates are bytes per second and direction, and latencies seconds one way.
type Cluster struct {
	Racks   int // R
	Workers int // W, in each rack
	Pods    int // P; if 0 or 1, racks are not in pods

	WorkerNIC     float64
	AggregatorNIC float64 // all NICs of one aggregator
	Uplink        float64 // of one rack; not used with one rack
	PodUplink     float64 // of one pod; not used without pods
	Memory        float64 // reads and writes of one aggregator; if 0, memory does not limit it

	// Coded is the bytes of a worker's compressed gradient or answer, in the longer direction, over the model's. If 0, it is 1.
	Coded float64

	RackLatency float64 // one hop within a rack
	CoreLatency float64 // one hop between racks
}

// Check validates the cluster.
func (c *Cluster) Check() error {
	switch {
	case c.Racks < 1 || c.Workers < 1:
		return fmt.Errorf("%w: %d racks of %d workers: use at least 1 of each", hierarchy.ErrCluster, c.Racks, c.Workers)
	case !(c.WorkerNIC > 0) || !(c.AggregatorNIC > 0):
		return fmt.Errorf("%w: worker NICs of %g B/s, aggregator NICs of %g B/s: both must be positive", hierarchy.ErrCluster,
			c.WorkerNIC, c.AggregatorNIC)
	case c.Racks > 1 && !(c.Uplink > 0):
		return fmt.Errorf("%w: %d racks with uplinks of %g B/s: give the rate of a rack's uplink", hierarchy.ErrCluster, c.Racks,
			c.Uplink)
	case c.Pods > 1 && !(c.PodUplink > 0):
		return fmt.Errorf("%w: %d pods with uplinks of %g B/s: give the rate of a pod's uplink", hierarchy.ErrCluster, c.Pods,
			c.PodUplink)
	case !(c.Coded >= 0 && c.Coded <= 1):
		return fmt.Errorf("%w: codecs that make 1 byte %g bytes: use 0, which stands for no codecs, to 1", hierarchy.ErrCluster, c.Coded)
	case c.Memory < 0 || c.RackLatency < 0 || c.CoreLatency < 0:
		return fmt.Errorf("%w: a rate or latency is negative", hierarchy.ErrCluster)
	}
	return c.topology(hierarchy.Sharded).Check()
}

// coded returns the bytes that a worker's link carries for each of the model's.
func (c *Cluster) coded() float64 { return cmp.Or(c.Coded, 1) }

// topology returns the reduction in a shape. Flat has the owners of sharded.
func (c *Cluster) topology(s hierarchy.Shape) hierarchy.Topology {
	if s == hierarchy.Flat {
		s = hierarchy.Sharded
	}
	return hierarchy.Topology{Shape: s, Racks: c.Racks, Pods: c.Pods}
}

// Fits returns an error if the cluster cannot have a shape.
func (c *Cluster) Fits(s hierarchy.Shape) error {
	if s == hierarchy.Pods && c.inPod() < 2 {
		return fmt.Errorf("%w: shape pods needs at least 2 racks in each pod, not %d", hierarchy.ErrCluster, c.inPod())
	}
	return c.topology(s).Check()
}

// inPod returns Q, the racks of each pod.
func (c *Cluster) inPod() int { return c.Racks / max(c.Pods, 1) }

// Link is a class of links.
type Link uint8

// These are the classes of links.
const (
	WorkerNIC Link = iota
	AggregatorNIC
	Uplink
	PodUplink
	links
)

func (l Link) String() string {
	return [...]string{"worker NIC", "aggregator NIC", "rack uplink", "pod uplink"}[l]
}

// Rate returns the rate of a class of links, or 0 if the cluster has none of them.
func (c *Cluster) Rate(l Link) float64 {
	return [...]float64{c.WorkerNIC, c.AggregatorNIC, c.Uplink, c.PodUplink}[l]
}
