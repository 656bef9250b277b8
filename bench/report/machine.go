package report

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"

	"github.com/rackweave/rackweave/numa"
)

// Machine describes a machine to a reader who judges a number.
type Machine struct {
	CPU string `json:"cpu"`
	// Cores is the logical CPUs this process may run on.
	Cores  int     `json:"cores"`
	Memory uint64  `json:"memory"`
	Kernel string  `json:"kernel"`
	Go     string  `json:"go"`
	Caches []Cache `json:"caches"`
}

// Cache is one of the first CPU's caches that hold data, of level 2 and up.
type Cache struct {
	Level int    `json:"level"`
	Bytes uint64 `json:"bytes"` // as the machine claims
	// CountOn is the part of it that this process can count on, if that is less because others use it too.
	CountOn uint64 `json:"count_on,omitempty"`
}

// ThisMachine describes the machine it runs on. What cannot be read is left empty: a benchmark does not fail for want of a
// description.
func ThisMachine() Machine {
	t, err := numa.Discover("")
	if err != nil {
		t = &numa.Topology{}
	}
	return describe(t)
}

func describe(t *numa.Topology) Machine {
	m := Machine{
		CPU: t.CPUModel, Cores: len(t.Allowed), Memory: uint64(t.MemoryBytes), Kernel: t.Kernel, Go: runtime.Version(),
	}
	if len(t.CPUs) == 0 {
		return m
	}
	for i, c := range []numa.Cache{t.CPUs[0].L2, t.CPUs[0].L3} {
		if c.Bytes > 0 {
			m.Caches = append(m.Caches, Cache{Level: 2 + i, Bytes: uint64(c.Bytes)})
		}
	}
	if last := t.LastLevelCache(); t.CPUs[0].L3.Bytes > last {
		m.Caches[len(m.Caches)-1].CountOn = uint64(last)
	}
	return m
}

// String is the machine on one line: "AMD EPYC, 2 cores, 23.5 GiB, L2 1 MiB, L3 32 MiB (8 MiB to count on), Linux 6.18.44, go1.26.8".
func (m Machine) String() string {
	parts := []string{cmp.Or(m.CPU, "unknown CPU"), numa.Count(m.Cores, "core"), Size(m.Memory)}
	for _, c := range m.Caches {
		text := fmt.Sprintf("L%d %s", c.Level, Size(c.Bytes))
		if c.CountOn > 0 {
			text += fmt.Sprintf(" (%s to count on)", Size(c.CountOn))
		}
		parts = append(parts, text)
	}
	if m.Kernel != "" {
		parts = append(parts, "Linux "+m.Kernel)
	}
	return strings.Join(append(parts, m.Go), ", ")
}

// Size prints bytes in the largest binary unit that leaves at least one: "32 KiB", "23.5 GiB".
func Size(bytes uint64) string { return numa.FormatBytes(int64(bytes)) }
