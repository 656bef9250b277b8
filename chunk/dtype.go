package chunk

import "fmt"

// DType is the type of an element on the wire. Values are those of enum rwk_dtype in cgo/kernel/kernel.h.
type DType uint8

const (
	F32  DType = 1
	BF16 DType = 2
	F16  DType = 3
)

// Size returns the size of one element in bytes, or 0 for an invalid type.
func (d DType) Size() int {
	switch d {
	case F32:
		return 4
	case BF16, F16:
		return 2
	}
	return 0
}

func (d DType) String() string {
	switch d {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	case F16:
		return "f16"
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// ParseDType returns the type that [DType.String] formats as s.
func ParseDType(s string) (DType, error) {
	for _, d := range [...]DType{F32, BF16, F16} {
		if s == d.String() {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %q: use f32, bf16 or f16", s)
}
