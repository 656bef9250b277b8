package attacks

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// resident returns the process's resident bytes.
func (a *Aggregator) resident() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("the kernel tells no resident size")
}

// CPU returns the processor time that the process has used.
func (a *Aggregator) CPU() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * (time.Second / 100), err
}

// count returns how many entries a folder of the process has: fd, task.
func (a *Aggregator) count(folder string) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", a.pid, folder))
	return len(entries), err
}

// size counts the things of a process that it might leak.
type size struct {
	bytes          int64
	files, threads int
}

func (s size) String() string {
	return fmt.Sprintf("%d MiB, %d descriptors, %d threads", s.bytes>>20, s.files, s.threads)
}

func (a *Aggregator) size() (s size, err error) {
	if s.bytes, err = a.resident(); err != nil {
		return s, err
	}
	if s.files, err = a.count("fd"); err != nil {
		return s, err
	}
	s.threads, err = a.count("task")
	return s, err
}

// kinds counts what the process's descriptors are of.
func (a *Aggregator) kinds() map[string]int {
	dir := fmt.Sprintf("/proc/%d/fd", a.pid)
	entries, _ := os.ReadDir(dir)
	kinds := map[string]int{}
	for _, e := range entries {
		to, _ := os.Readlink(dir + "/" + e.Name())
		kind, _, _ := strings.Cut(to, ":[")
		kinds[kind]++
	}
	return kinds
}

// moreThreads is the number of threads that an aggregator may start under attack. Go keeps one for each call into the kernel
// and C that ever was under way at once: a dozen of lanes and devices, eight at arenas, and, where a machine is so busy that it
// takes the processor from threads in the midst of calls, one for each of the 64 requests that strangers may have under way.
const moreThreads = 96

// settles waits until what attacks have left is gone: jobs whose workers are never heard of again stay for some time, and
// connections that say nothing for two minutes.
func (a *Aggregator) settles(start size) (now size, err error) {
	for end := time.Now().Add(4 * patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if now, err = a.size(); err != nil {
			return now, err
		}
		if now.bytes < start.bytes+256<<20 && now.files < start.files+64 && now.threads < start.threads+moreThreads {
			return now, nil
		}
	}
	return now, fmt.Errorf("the process has %v, and had %v at first: %v", now, start, a.kinds())
}

// listening returns the ports on which the process's sockets listen.
func (a *Aggregator) listening() (ports []int64, err error) {
	own := map[string]bool{}
	dir := fmt.Sprintf("/proc/%d/fd", a.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if to, err := os.Readlink(dir + "/" + e.Name()); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", a.pid))
	if err != nil {
		return nil, err
	}
	const listens = "0A"
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == listens && own[f[9]] {
			_, hex, _ := strings.Cut(f[1], ":")
			port, err := strconv.ParseInt(hex, 16, 32)
			if err != nil {
				return nil, err
			}
			ports = append(ports, port)
		}
	}
	return ports, nil
}
