package chunk

import "fmt"

// DType is the type of an element on the wire. Values are those of enum rwk_dtype in cgo/kernel/kernel.h.
type DType uint8

const (
	F32  DType = 1
	BF16 DType = 2
	F16  DType = 3
)

var dtypes = [...]struct {
	name string
	size int
}{F32: {"f32", 4}, BF16: {"bf16", 2}, F16: {"f16", 2}}

// Size returns the size of one element in bytes, or 0 for an invalid type.
func (d DType) Size() int {
	if int(d) < len(dtypes) {
		return dtypes[d].size
	}
	return 0
}

func (d DType) String() string {
	if d.Size() == 0 {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType returns the type that [DType.String] formats as s.
func ParseDType(s string) (DType, error) {
	for d := F32; d <= F16; d++ {
		if s == dtypes[d].name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %q: use f32, bf16 or f16", s)
}
