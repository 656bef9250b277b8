package numa

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPUs bounds the CPU and node numbers accepted from text. It is several times the largest number that a kernel can be built for
// (8192).
const maxCPUs = 1 << 16

// CPUSet is a set of CPU numbers, ascending. Its text and JSON form is the kernel's list format, "0-3,8" (cpuset(7)).
type CPUSet []int

// ParseCPUs parses the kernel's list format. An empty list is an empty set, and so is "(null)", the content of
// /sys/devices/system/cpu/nohz_full when it is not set.
func ParseCPUs(s string) (CPUSet, error) {
	s = strings.TrimSpace(s)
	if s == "" || s == "(null)" {
		return nil, nil
	}
	var set CPUSet
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			hi = lo
		}
		first, err := strconv.ParseUint(lo, 10, 32)
		last, err2 := strconv.ParseUint(hi, 10, 32)
		if err != nil || err2 != nil || first > last || last >= maxCPUs {
			return nil, fmt.Errorf("cpu list %q: %q is not a cpu or a range of cpus below %d, as in 0-3,8", s, part, maxCPUs)
		}
		for cpu := int(first); cpu <= int(last); cpu++ {
			set = append(set, cpu)
		}
		if len(set) > maxCPUs {
			return nil, fmt.Errorf("cpu list of %d bytes names more than %d cpus", len(s), maxCPUs)
		}
	}
	slices.Sort(set)
	return slices.Compact(set), nil
}

// String returns the set in the kernel's list format.
func (s CPUSet) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] == s[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if j > i {
			fmt.Fprintf(&b, "-%d", s[j])
		}
		i = j + 1
	}
	return b.String()
}

// MarshalText returns the set in the kernel's list format.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the kernel's list format.
func (s *CPUSet) UnmarshalText(text []byte) (err error) {
	*s, err = ParseCPUs(string(text))
	return err
}

// Has reports whether a CPU is in the set.
func (s CPUSet) Has(cpu int) bool {
	_, found := slices.BinarySearch(s, cpu)
	return found
}

// And returns the intersection of two sets.
func (s CPUSet) And(o CPUSet) CPUSet { return s.filter(o.Has) }

// Minus returns the CPUs of s that are not in o.
func (s CPUSet) Minus(o CPUSet) CPUSet { return s.filter(func(cpu int) bool { return !o.Has(cpu) }) }

func (s CPUSet) filter(keep func(int) bool) CPUSet {
	var out CPUSet
	for _, cpu := range s {
		if keep(cpu) {
			out = append(out, cpu)
		}
	}
	return out
}
