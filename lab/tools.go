package lab

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrMissingTool is wrapped by errors that name a program the lab needs and the package that has it.
var ErrMissingTool = errors.New("missing tool")

// packages maps a tool to its Debian or Ubuntu package. The last few run in the guest, from the host's root.
var packages = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"busybox":            "busybox-static",
	"apt-get":            "apt",
	"apt-cache":          "apt",
	"dpkg-deb":           "dpkg",
	"depmod":             "kmod",
	"modprobe":           "kmod",
	"xz":                 "xz-utils",
	"zstd":               "zstd",
	"ip":                 "iproute2",
	"rdma":               "iproute2",
}

// tool finds a program in PATH, or in directories that an unprivileged user's PATH leaves out.
func tool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not installed: apt-get install %s", ErrMissingTool, name, packages[name])
}

// staticBusybox finds a busybox that runs in an initramfs, which has no dynamic loader.
func staticBusybox() (string, error) {
	path, err := tool("busybox")
	if err != nil {
		return "", err
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%w: %s is dynamically linked: apt-get install busybox-static", ErrMissingTool, path)
		}
	}
	return path, nil
}
