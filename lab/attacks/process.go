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
