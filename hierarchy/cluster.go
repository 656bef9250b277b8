package hierarchy

import "fmt"

// Cluster is what is known of the machines and links of a job. Rates are bytes per second and direction, latencies seconds one
// way.
type Cluster struct {
	Racks   int // R
	Workers int // W, in each rack
	Pods    int // P; 0 or 1: the racks are in no pods

	WorkerNIC     float64
	AggregatorNIC float64 // all NICs of one aggregator together
	Uplink        float64 // of one rack; with one rack not used
	PodUplink     float64 // of one pod; without pods not used
	SpineNIC      float64 // of an aggregator at the spine; 0: there is none

	RackLatency float64 // one hop within a rack
	CoreLatency float64 // one hop between racks

	// FoldRate is how many bytes of gradients one aggregator sums per second, all its cores together; 0: as fast as they come.
	FoldRate float64

	Outer Outer // how racks that train on their own meet; the zero value: they add their gradients in every step
}

// Check returns what of a cluster cannot be.
func (c *Cluster) Check() error {
	switch {
	case c.Racks < 1 || c.Workers < 1:
		return fmt.Errorf("%w: %d racks of %d workers: use at least 1 of each", ErrCluster, c.Racks, c.Workers)
	case c.Pods < 0 || c.Pods > 1 && c.Racks%c.Pods != 0:
		return fmt.Errorf("%w: %d racks in %d pods: use a number of pods that divides the racks", ErrCluster, c.Racks,
			c.Pods)
	case !(c.WorkerNIC > 0) || !(c.AggregatorNIC > 0):
		return fmt.Errorf("%w: worker NICs of %g B/s, aggregator NICs of %g B/s: both must be positive", ErrCluster,
			c.WorkerNIC, c.AggregatorNIC)
	case c.Racks > 1 && !(c.Uplink > 0):
		return fmt.Errorf("%w: %d racks with uplinks of %g B/s: give the rate of a rack's uplink", ErrCluster, c.Racks,
			c.Uplink)
	case c.Pods > 1 && !(c.PodUplink > 0):
		return fmt.Errorf("%w: %d pods with uplinks of %g B/s: give the rate of a pod's uplink", ErrCluster, c.Pods,
			c.PodUplink)
	case c.SpineNIC < 0 || c.FoldRate < 0 || c.RackLatency < 0 || c.CoreLatency < 0:
		return fmt.Errorf("%w: a rate or latency is negative", ErrCluster)
	}
	return c.Outer.Check()
}

// pods returns P, at least 1.
func (c *Cluster) pods() int { return max(c.Pods, 1) }

// inPod returns Q, the racks of each pod.
func (c *Cluster) inPod() int { return c.Racks / c.pods() }

// Link is a class of links.
type Link uint8

// The classes of links.
const (
	WorkerNIC Link = iota
	AggregatorNIC
	Uplink
	PodUplink
	SpineNIC
	links
)

func (l Link) String() string {
	return [...]string{"worker NIC", "aggregator NIC", "rack uplink", "pod uplink", "spine NIC"}[l]
}

// Rate returns the rate of a class of links; 0: the cluster has none.
func (c *Cluster) Rate(l Link) float64 {
	return [...]float64{c.WorkerNIC, c.AggregatorNIC, c.Uplink, c.PodUplink, c.SpineNIC}[l]
}
