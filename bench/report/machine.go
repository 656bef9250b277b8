package report

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what a reader must know of a machine to judge a number.
type Machine struct {
	CPU string `json:"cpu"`
	// Cores is the logical CPUs this process may run on.
	Cores  int     `json:"cores"`
	Memory uint64  `json:"memory"`
	Kernel string  `json:"kernel"`
	Go     string  `json:"go"`
	Caches []Cache `json:"caches"`
}

// Cache is one of the first CPU's caches.
type Cache struct {
	Level int    `json:"level"`
	Type  string `json:"type"` // Data, Instruction or Unified
	Bytes uint64 `json:"bytes"`
}

// ReadMachine describes the machine whose root file system is given: ThisMachine's, or a captured tree's. What cannot be
// read is left empty: a benchmark does not fail for want of a description.
func ReadMachine(root fs.FS) Machine {
	return Machine{
		CPU:    cpuName(root),
		Cores:  cpuCount(allowed(root)),
		Memory: byteSize(field(root, "proc/meminfo", "MemTotal")),
		Kernel: strings.TrimSpace(read(root, "proc/sys/kernel/osrelease")),
		Go:     runtime.Version(),
		Caches: caches(root),
	}
}

// allowed is the list of the CPUs this thread may run on: the process's own file is that of its first thread, which may be a
// pinned one.
func allowed(root fs.FS) string {
	const name = "Cpus_allowed_list"
	if list := field(root, "proc/thread-self/status", name); list != "" {
		return list
	}
	return field(root, "proc/self/status", name)
}

// ThisMachine describes the machine it runs on.
func ThisMachine() Machine { return ReadMachine(os.DirFS("/")) }

// String is the machine on one line: "AMD EPYC, 2 cores, 23.5 GiB, L2 1 MiB, L3 32 MiB, Linux 6.18.44, go1.26.8".
func (m Machine) String() string {
	parts := []string{m.CPU, plural(m.Cores, "core"), Size(m.Memory)}
	if m.CPU == "" {
		parts[0] = "unknown CPU"
	}
	for _, c := range m.Caches {
		if c.Level > 1 && c.Type != "Instruction" {
			parts = append(parts, fmt.Sprintf("L%d %s", c.Level, Size(c.Bytes)))
		}
	}
	if m.Kernel != "" {
		parts = append(parts, "Linux "+m.Kernel)
	}
	return strings.Join(append(parts, m.Go), ", ")
}

// Size prints bytes in the largest binary unit that leaves at least one: "32 KiB", "23.5 GiB".
func Size(bytes uint64) string {
	value, unit := float64(bytes), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	text := strconv.FormatFloat(value, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0") + " " + unit
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// cpuName is the model's name; arm64 kernels give none, there the implementer and part numbers stand for it.
func cpuName(root fs.FS) string {
	const cpuinfo = "proc/cpuinfo"
	if name := field(root, cpuinfo, "model name"); name != "" {
		return name
	}
	if part := field(root, cpuinfo, "CPU part"); part != "" {
		return fmt.Sprintf("CPU implementer %s part %s", field(root, cpuinfo, "CPU implementer"), part)
	}
	return ""
}

func caches(root fs.FS) []Cache {
	var found []Cache
	for i := 0; ; i++ {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu0/cache/index%d", i)
		level, err := strconv.Atoi(strings.TrimSpace(read(root, path.Join(dir, "level"))))
		if err != nil {
			return found
		}
		found = append(found, Cache{
			Level: level,
			Type:  strings.TrimSpace(read(root, path.Join(dir, "type"))),
			Bytes: byteSize(read(root, path.Join(dir, "size"))),
		})
	}
}

// cpuCount counts the CPUs of a kernel list such as "0-3,8,10-11"; 0 if it is none.
func cpuCount(list string) int {
	count := 0
	for _, span := range strings.Split(list, ",") {
		from, to, isRange := strings.Cut(span, "-")
		first, err := strconv.ParseUint(from, 10, 16)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(to, 10, 16)
		}
		if err != nil || last < first {
			return 0
		}
		count += int(last-first) + 1
	}
	return count
}

// byteSize reads "24684084 kB" and "1024K"; 0 if it is neither.
func byteSize(text string) uint64 {
	text = strings.TrimSpace(text)
	digits := strings.TrimRight(text, " kKMB")
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil {
		return 0
	}
	switch strings.TrimSpace(text[len(digits):]) {
	case "K", "kB":
		return n << 10
	case "M":
		return n << 20
	case "":
		return n
	}
	return 0
}

// field returns the value of the first "name : value" line of a file.
func field(root fs.FS, file, name string) string {
	for line := range strings.Lines(read(root, file)) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func read(root fs.FS, file string) string {
	data, err := fs.ReadFile(root, file)
	if err != nil {
		return ""
	}
	return string(data)
}
