package api

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// SocketPath returns the path of the Unix socket of an aggregator of this user that listens on an address: over it the same user
// administers the aggregator without a token. The folder is only this user's.
func SocketPath(listen *net.TCPAddr) string {
	host := listen.IP.String()
	if len(listen.IP) == 0 || listen.IP.IsUnspecified() {
		host = "any"
	}
	return filepath.Join(socketDir(), strings.ReplaceAll(host, ":", "_")+"."+strconv.Itoa(listen.Port))
}

func socketDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "rackweave")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("rackweave-%d", os.Geteuid()))
}

// OwnSocketDir makes the folder of a Unix socket where it is missing, and refuses one that others may write to.
func OwnSocketDir(path string) error {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return checkSocketDir(dir)
}

func checkSocketDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || stat.Uid != uint32(os.Geteuid()) || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not only this user's: remove it, or set XDG_RUNTIME_DIR", dir)
	}
	return nil
}

// LocalSocket returns the Unix socket of an aggregator of this user that a URL of this host leads to, or "" if it leads to none.
func LocalSocket(host, port string) string {
	n, err := strconv.Atoi(port)
	if err != nil {
		return ""
	}
	ip := net.ParseIP(host)
	if host == "localhost" {
		ip = net.IPv4(127, 0, 0, 1)
	}
	if ip == nil || !ip.IsLoopback() {
		return ""
	}
	for _, listen := range []net.IP{ip, nil} {
		path := SocketPath(&net.TCPAddr{IP: listen, Port: n})
		if checkSocketDir(filepath.Dir(path)) != nil {
			return ""
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return path
		}
	}
	return ""
}

// HostID tells hosts apart: two processes with the same one can share memory and reach each other's abstract sockets. It is the
// kernel's boot id with the network namespace; a kernel that hides the first is told by its host name.
func HostID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		name, _ := os.Hostname()
		id = []byte("host " + name)
	}
	ns, _ := os.Readlink("/proc/self/ns/net")
	return strings.TrimSpace(string(id)) + " " + ns
}
