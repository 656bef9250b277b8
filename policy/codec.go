package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrState is what the error of loading a damaged state wraps.
var ErrState = errors.New("damaged policy state")

// codec writes state, or reads it: one method of a policy lists its fields for both.
type codec struct {
	data    []byte
	loading bool
	failed  bool
}

func (c *codec) uint(v *uint64) {
	if !c.loading {
		c.data = binary.AppendUvarint(c.data, *v)
		return
	}
	got, n := binary.Uvarint(c.data)
	if n <= 0 {
		c.failed = true
		return
	}
	*v, c.data = got, c.data[n:]
}

func (c *codec) int(v *int) {
	u := uint64(*v)
	c.uint(&u)
	*v = int(u)
}

func (c *codec) time(v *int64) {
	u := uint64(*v)
	c.uint(&u)
	*v = int64(u)
}

func (c *codec) float(v *float64) {
	u := math.Float64bits(*v)
	c.uint(&u)
	*v = math.Float64frombits(u)
}

func (c *codec) bool(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	c.uint(&u)
	*v = u == 1
}

// length is of a slice that is at most limit long.
func (c *codec) length(have, limit int) int {
	c.int(&have)
	if have < 0 || have > limit {
		c.failed = true
		return 0
	}
	return have
}

// each visits the elements of a slice of fixed length.
func each[T any](of []T, visit func(*T)) {
	for i := range of {
		visit(&of[i])
	}
}

func (c *codec) end() error {
	switch {
	case c.failed:
		return fmt.Errorf("%w: it is cut short or not a policy's", ErrState)
	case len(c.data) > 0:
		return fmt.Errorf("%w: %d bytes follow it", ErrState, len(c.data))
	}
	return nil
}
