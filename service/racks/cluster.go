// Package racks describes a cluster of racks: its file, the division of a job's workers among the racks, the plan of the
// aggregators that serve them, and the posts that aggregators exchange while a job begins.
package racks

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
)

// Rack is one rack of a cluster.
type Rack struct {
	Name string `yaml:"name"`
	URL  string `yaml:"url"`  // of its aggregator's control plane
	Pod  string `yaml:"pod"`  // racks of a pod follow each other
	CA   string `yaml:"ca"`   // for https: sha256: and the fingerprint of the aggregator's certificate, or a file of those to trust
	Size int    `yaml:"size"` // its share of a job's workers, against the others'. If 0, it is 1.
}

// Cluster describes the racks whose aggregators reduce among themselves, in the order in which their sums are added. All
// aggregators have the same.
type Cluster struct {
	Name  string `yaml:"name"` // of the cluster, among the clusters of one etcd
	Racks []Rack `yaml:"racks"`
	// Shape is one of Shapes.
	Shape string `yaml:"shape"`
	// Outer is the outer optimizer of jobs whose workers declare none, as [outer.Parse] reads it. If empty, racks add their
	// gradients in every step.
	Outer string `yaml:"outer"`
	// Core is the type of sums between racks, f32 or bf16, or the codecs of sums and results, such as int8 or int4/int8. If empty, it
	// is f32.
	Core string `yaml:"core"`
	// Secret is shared by the aggregators, and by nobody else.
	Secret string `yaml:"secret"`
	// OnLoss is the choice for jobs when a rack's aggregator is lost: wait or go-on. If empty, it is wait.
	OnLoss string `yaml:"on-loss"`
	// Buddy makes each rack also keep the optimizer state of the rack before it, in jobs of mode eager, so that the state is not
	// lost with that rack's aggregator.
	Buddy bool   `yaml:"buddy"`
	Own   string `yaml:"-"` // the name of this aggregator's rack
	// Dynamic leaves the URLs of the racks to Members. Otherwise they are in the file.
	Dynamic bool    `yaml:"-"`
	Members Members `yaml:"-"`
}

const (
	minSecret = 16 // bytes
	// minDistinct is the least number of different bytes of a secret, because one with fewer can be guessed.
	minDistinct   = 8
	exampleSecret = "at least 16 characters"
	// maxSize is the largest number of workers of a job.
	maxSize = 1024
)

// ErrCluster is wrapped by every error about a cluster's configuration.
var ErrCluster = hierarchy.ErrCluster

// Shapes lists the shapes that a cluster may declare. Auto is chosen for each job, by links.
var Shapes = []string{"auto", "sharded", "ring", "chain", "root", "pods", "flat"}

// Listen returns the address to listen on for the rack's own url: its port, and its host where that is this host's loopback, or
// an address. It returns otherwise if the file has no url.
func (c *Cluster) Listen(otherwise string) string {
	i := c.Index()
	if i < 0 || c.Racks[i].URL == "" {
		return otherwise
	}
	u, err := url.Parse(c.Racks[i].URL)
	if err != nil || u.Port() == "" {
		return otherwise
	}
	host := u.Hostname()
	if net.ParseIP(host) == nil && host != "localhost" {
		host = ""
	}
	return net.JoinHostPort(host, u.Port())
}

// Check validates the cluster.
func (c *Cluster) Check() error {
	if len(c.Racks) == 0 || len(c.Racks) > hierarchy.MaxRacks {
		return fmt.Errorf("%w: %d racks: list 1 to %d under racks, each with its name and url", ErrCluster, len(c.Racks),
			hierarchy.MaxRacks)
	}
	if err := c.checkSecret(); err != nil {
		return err
	}
	if err := c.checkRacks(); err != nil {
		return err
	}
	if c.Index() < 0 {
		return fmt.Errorf("%w: this aggregator is of rack %q, which is not among %v: name one of them by --rack", ErrCluster, c.Own, c.Names())
	}
	o, err := outer.Parse(c.Outer)
	if err != nil {
		return err
	}
	if !slices.Contains(Losses, c.Loss()) {
		return fmt.Errorf("%w: on-loss %q: use one of %v", ErrCluster, c.OnLoss, Losses)
	}
	t, err := c.Topology()
	none := o == outer.Optimizer{}
	switch {
	case err != nil:
		return err
	case c.Loss() == LossGoOn && (t.Pods > 1 || t.Shape == hierarchy.Flat):
		return fmt.Errorf("%w: on-loss %s with pods or shape flat, which need every rack: use %s", ErrCluster, LossGoOn, LossWait)
	case t.Shape == hierarchy.Flat && !none:
		return fmt.Errorf("%w: outer %q and shape flat, in which no aggregator has a rack's sums: use another shape, or outer none", ErrCluster,
			c.Outer)
	case c.Buddy && !none:
		return fmt.Errorf("%w: buddy and outer %q, whose racks do not add their gradients in every step: use one of them", ErrCluster, c.Outer)
	case c.Buddy:
		err = t.CheckBuddies()
	}
	if err != nil {
		return err
	}
	return c.checkCore(t)
}

func (c *Cluster) checkSecret() error {
	if c.Secret == exampleSecret {
		return fmt.Errorf("%w: the secret is the documentation's example, which everybody knows: use that of openssl rand -hex 32", ErrCluster)
	}
	if len(c.Secret) < minSecret {
		return fmt.Errorf("%w: a secret of %d characters: give all aggregators the same, of at least %d", ErrCluster, len(c.Secret),
			minSecret)
	}
	distinct := map[byte]bool{}
	for i := range len(c.Secret) {
		distinct[c.Secret[i]] = true
	}
	if len(distinct) < minDistinct {
		return fmt.Errorf("%w: a secret of %d different characters: use at least %d, such as those of openssl rand -hex 32", ErrCluster,
			len(distinct), minDistinct)
	}
	return nil
}

// checkRacks checks each rack against those before it.
func (c *Cluster) checkRacks() error {
	at := map[string]string{} // by place, the rack
	for i, r := range c.Racks {
		u, err := url.Parse(r.URL)
		switch {
		case r.Name == "":
			return fmt.Errorf("%w: rack %d has no name", ErrCluster, i)
		case len(r.Name) > hierarchy.MaxRackName:
			return fmt.Errorf("%w: rack %d has a name of %d bytes: use at most %d", ErrCluster, i, len(r.Name), hierarchy.MaxRackName)
		case slices.ContainsFunc(c.Racks[:i], func(o Rack) bool { return o.Name == r.Name }):
			return fmt.Errorf("%w: rack %q is listed twice", ErrCluster, r.Name)
		case r.Size < 0 || r.Size > maxSize:
			return fmt.Errorf("%w: rack %q has size %d: use a number of workers from 1 to %d, or leave it out", ErrCluster, r.Name, r.Size,
				maxSize)
		case r.URL == "" && c.Dynamic:
			continue
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("%w: rack %q has URL %q: use one such as http://aggregator:7077", ErrCluster, r.Name, r.URL)
		}
		place := strings.ToLower(u.Host) + strings.TrimRight(u.Path, "/")
		if o, is := at[place]; is {
			return fmt.Errorf("%w: racks %q and %q both have URL %s: give each that of its own aggregator", ErrCluster, o, r.Name, r.URL)
		}
		at[place] = r.Name
	}
	return nil
}

// checkCore returns an error if sums cannot have the declared type between racks.
func (c *Cluster) checkCore(t hierarchy.Topology) error {
	d, codecs, err := c.CrossesAs()
	switch {
	case err != nil:
		return err
	case d == chunk.F32 && codecs == codec.Pair{}:
		return nil
	case t.Shape == hierarchy.Flat:
		return fmt.Errorf("%w: core %s and shape flat, in which no sums cross: use another shape, or register tensors as bf16", ErrCluster,
			c.Core)
	case d == chunk.F32 && c.Buddy:
		return fmt.Errorf("%w: core %s and buddies, which need whole sums: use one of them", ErrCluster, c.Core)
	case d == chunk.F32:
		return nil
	case c.Outer != "" && c.Outer != "none":
		return fmt.Errorf("%w: core bf16 and outer %q, whose differences cross in f32 only: use one of them", ErrCluster, c.Outer)
	}
	return t.CheckOnce()
}

// CoreName returns the type of sums between racks.
func (c *Cluster) CoreName() string { return cmp.Or(c.Core, "f32") }

// CrossesAs returns the type of sums between racks, and the codecs that shorten them.
func (c *Cluster) CrossesAs() (d chunk.DType, codecs codec.Pair, err error) {
	switch c.CoreName() {
	case "f32":
		return chunk.F32, codecs, nil
	case "bf16":
		return chunk.BF16, codecs, nil
	}
	if codecs, err = codec.ParsePair(c.Core, true); err != nil {
		err = fmt.Errorf("%w: core %q: use f32, bf16 or codecs such as int8: %w", ErrCluster, c.Core, err)
	}
	return chunk.F32, codecs, err
}

// Loss returns the choice for jobs when a rack's aggregator is lost.
func (c *Cluster) Loss() string { return cmp.Or(c.OnLoss, LossWait) }

// ShapeName returns the declared shape.
func (c *Cluster) ShapeName() string { return cmp.Or(c.Shape, "auto") }

// Declaration describes the cluster, as all aggregators must declare it.
func (c *Cluster) Declaration() string {
	text := fmt.Sprintf("%s, shape %s, core %s, on-loss %s", c.Division(), c.ShapeName(), c.CoreName(), c.Loss())
	if c.Buddy {
		text += ", buddies"
	}
	return text
}

// Division describes the division of a job's workers among the racks, and the outer optimizer. Aggregators that differ in it
// would wait for workers that never come.
func (c *Cluster) Division() string {
	var b strings.Builder
	for _, r := range c.Racks {
		fmt.Fprintf(&b, "rack %s pod %q size %d, ", r.Name, r.Pod, max(r.Size, 1))
	}
	fmt.Fprintf(&b, "outer %q", c.Outer)
	return b.String()
}

// Exposed returns the first of the other racks whose URL leads off this host without TLS.
func (c *Cluster) Exposed() (r Rack, is bool) {
	for _, r := range c.Racks {
		u, err := url.Parse(r.URL)
		if err != nil || u.Scheme != "http" || r.Name == c.Own {
			continue
		}
		if host := u.Hostname(); host != "localhost" && !net.ParseIP(host).IsLoopback() {
			return r, true
		}
	}
	return Rack{}, false
}

// Index returns the number of this aggregator's rack.
func (c *Cluster) Index() int {
	return slices.IndexFunc(c.Racks, func(r Rack) bool { return r.Name == c.Own })
}

// Names returns the racks' names.
func (c *Cluster) Names() []string {
	names := make([]string, len(c.Racks))
	for i, r := range c.Racks {
		names[i] = r.Name
	}
	return names
}

// Topology returns the topology in which the aggregators reduce among themselves. Shape auto is sharded until the links choose
// another: on even uplinks it has the fewest bytes and hops, and its windows free themselves whatever the order in which workers
// push.
func (c *Cluster) Topology() (hierarchy.Topology, error) {
	t := hierarchy.Topology{Racks: len(c.Racks), Pods: 1}
	for i, r := range c.Racks {
		if i > 0 && r.Pod != c.Racks[i-1].Pod {
			t.Pods++
			if slices.ContainsFunc(c.Racks[:i], func(o Rack) bool { return o.Pod == r.Pod }) {
				return t, fmt.Errorf("%w: rack %q is of pod %q, whose other racks are listed before another pod: list a pod's racks together", ErrCluster,
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
	if !slices.Contains(Shapes, c.ShapeName()) {
		return t, fmt.Errorf("%w: shape %q: use one of %v", ErrCluster, c.Shape, Shapes)
	}
	t.Shape = hierarchy.Sharded
	if c.ShapeName() != "auto" {
		var err error
		if t.Shape, err = hierarchy.ParseShape(c.Shape); err != nil {
			return t, err
		}
	}
	reduces := t
	if t.Shape == hierarchy.Flat {
		reduces.Shape = hierarchy.Sharded // of flat only the racks and pods count, in the order of the sum
	}
	return t, reduces.Check()
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

// Of returns the rack of a rank, by the racks' numbers of workers.
func Of(rank int, workers []int) (rack int) {
	for rank >= workers[rack] {
		rank -= workers[rack]
		rack++
	}
	return rack
}

// Seal returns a digest of fields that cannot be made without the secret.
func Seal(secret string, fields ...string) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	for _, f := range fields {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(f)))
		h.Write(n[:])
		h.Write([]byte(f))
	}
	return h.Sum(nil)
}

// Sealed reports whether a seal is of these fields.
func Sealed(seal []byte, secret string, fields ...string) bool {
	return hmac.Equal(seal, Seal(secret, fields...))
}
