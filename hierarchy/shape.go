package hierarchy

import "fmt"

// Shape is a way in which the aggregators of a job reduce among themselves.
type Shape uint8

// These are the shapes.
const (
	// Flat has no reduction in the rack. Workers of all racks send each chunk to the aggregator that owns it.
	Flat Shape = iota
	// Sharded sends every rack's sum of a chunk from its aggregator to the chunk's owner, and the result back. Chunks are
	// spread over all owners: a reduce-scatter and an all-gather by chunk.
	Sharded
	// Ring passes sums around the aggregators, then the result around again. Racks are added in their order, so the start rotates by
	// chunk only between two racks. With more racks it is a chain.
	Ring
	// Chain passes sums along the racks in order, then the result back.
	Chain
	// Root is sharded with one owner, rack 0, which is the root of every chunk's tree.
	Root
	// Pods is sharded within each pod, then across pods: BlueConnect's decomposition (MLSys 2019).
	Pods
	shapes
)

var shapeNames = [...]string{"flat", "sharded", "ring", "chain", "root", "pods"}

func (s Shape) String() string { return shapeNames[s] }

// Shapes returns all shapes.
func Shapes() []Shape {
	all := make([]Shape, shapes)
	for i := range all {
		all[i] = Shape(i)
	}
	return all
}

// Resolve returns the shape that chunks take among so many racks.
func (s Shape) Resolve(racks int) Shape {
	switch {
	case s == Ring && racks > 2:
		return Chain
	case s == Ring:
		return Sharded
	}
	return s
}

// ParseShape returns the shape of a name.
func ParseShape(name string) (Shape, error) {
	for i, n := range shapeNames {
		if n == name {
			return Shape(i), nil
		}
	}
	return 0, fmt.Errorf("unknown shape %q: use one of %v", name, shapeNames)
}

// MarshalText returns the shape's name.
func (s Shape) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the shape's name.
func (s *Shape) UnmarshalText(name []byte) (err error) {
	*s, err = ParseShape(string(name))
	return err
}
