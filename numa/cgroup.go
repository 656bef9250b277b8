package numa

import (
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// cgroupDirs lists the directories of this process's cgroup for a controller, innermost first, in cgroup v1 or v2 (cgroups(7)).
// Where the path belongs to another namespace, it lists only the root of the hierarchy, which is the container's own.
func (t tree) cgroupDirs(controller string) []string {
	base, at := "sys/fs/cgroup", ""
	for line := range strings.Lines(t.text("proc/self/cgroup")) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, dir, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(controllers, ","), controller) {
			base, at = path.Join("sys/fs/cgroup", controller), dir
			break
		}
		if controllers == "" {
			at = dir
		}
	}
	at = path.Clean("/" + at) // a path outside this namespace starts with ".."
	if !t.exists(path.Join(base, at)) {
		at = ""
	}
	dirs := []string{path.Join(base, at)}
	for dirs[len(dirs)-1] != base {
		dirs = append(dirs, path.Dir(dirs[len(dirs)-1]))
	}
	return dirs
}

// cpuset returns the CPUs on which this process's cgroup lets it run. ok is false if no cgroup limits them.
func (t tree) cpuset() (set CPUSet, ok bool) {
	for _, dir := range t.cgroupDirs("cpuset") {
		for _, file := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus"} {
			if set := t.cpus(path.Join(dir, file)); len(set) > 0 {
				return set, true
			}
		}
	}
	return nil, false
}

// cgroupMemory returns the memory that the limits of this process's cgroups leave: limit minus use, with page cache that can be
// dropped counted as free. limit names the limiting file, or is empty without a limit.
func (t tree) cgroupMemory() (bytes int64, limit string) {
	bytes = math.MaxInt64
	for _, dir := range t.cgroupDirs("memory") {
		for _, v := range []struct{ max, current, cache string }{
			{"memory.max", "memory.current", "inactive_file "},
			{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
		} {
			maxBytes, limited := t.number(path.Join(dir, v.max)) // "max" is not a number
			used, _ := t.number(path.Join(dir, v.current))
			// v1 represents no limit by the largest multiple of the page size.
			if !limited || maxBytes > math.MaxInt64>>1 {
				continue
			}
			cached, _ := strconv.ParseInt(t.field(path.Join(dir, "memory.stat"), v.cache), 10, 64)
			if left := max(0, maxBytes-used+cached); left < bytes {
				bytes, limit = left, "/"+path.Join(dir, v.max)
			}
		}
	}
	return bytes, limit
}
