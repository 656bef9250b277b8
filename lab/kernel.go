package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
)

// guestModules are the modules that a guest may need; modprobe adds their dependencies. crc32_generic is a dependency of rdma_rxe
// that no metadata names: without it "rdma link add" fails with ENOENT. So are gcm, ctr and ghash_generic dependencies of tls.
var guestModules = []string{
	"virtio_pci", "9p", "9pnet_virtio", "virtio_net", "virtio_console", "virtio_rng", "dummy", "veth", "sch_netem", "sch_tbf",
	"tls", "gcm", "ctr", "ghash_generic", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe",
}

// kernel is a stock kernel, unpacked: vmlinuz, and modules in the order in which they load.
type kernel struct {
	vmlinuz string
	modules []string
}

// CacheDir returns the directory that keeps kernels between runs.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("lab cache: %w", err)
	}
	return filepath.Join(base, "rackweave", "lab"), nil
}

// fetchKernel returns the distribution's current kernel. It downloads and unpacks the kernel if the cache has none.
func fetchKernel(ctx context.Context) (*kernel, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the lab boots x86-64 guests on x86-64 hosts only, this is %s", runtime.GOARCH)
	}
	pkgs, err := kernelPackages(ctx)
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("lab cache: %w", err)
	}
	unlock, err := lockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	key := sha256.Sum256([]byte(strings.Join(append(pkgs, guestModules...), " ")))
	dir := filepath.Join(cache, fmt.Sprintf("%s-%x", pkgs[0], key[:4]))
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		if err := unpackKernel(ctx, pkgs, dir); err != nil {
			return nil, err
		}
	}
	modules, err := filepath.Glob(filepath.Join(dir, "modules", "*.ko"))
	if err != nil || len(modules) == 0 {
		return nil, fmt.Errorf("kernel cache %s holds no modules: remove it and try again", dir)
	}
	return &kernel{vmlinuz: filepath.Join(dir, "vmlinuz"), modules: modules}, nil
}

// lockFile keeps other processes from filling the cache at the same time.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lab cache: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

var kernelPackage = regexp.MustCompile(`^linux-(image|modules)(-extra)?-[0-9]\S*`)

// kernelPackages resolves the distribution's kernel meta package to the packages with the image and its modules, image first.
func kernelPackages(ctx context.Context) ([]string, error) {
	metas := []string{"linux-image-amd64", "linux-image-generic"}
	if name := os.Getenv("RACKWEAVE_LAB_KERNEL"); name != "" {
		metas = []string{name}
	}
	for _, meta := range metas {
		out, err := command(ctx, "", "apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests",
			"--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", meta)
		if err != nil {
			return nil, err
		}
		var pkgs []string
		for line := range strings.Lines(string(out)) {
			name := kernelPackage.FindString(line)
			switch {
			case name == "" || name == meta:
			case strings.HasPrefix(name, "linux-image-"):
				pkgs = append([]string{name}, pkgs...)
			default:
				pkgs = append(pkgs, name)
			}
		}
		if len(pkgs) > 0 {
			return pkgs, nil
		}
	}
	return nil, fmt.Errorf("no kernel package found behind %s: run apt-get update, or name one in RACKWEAVE_LAB_KERNEL",
		strings.Join(metas, " or "))
}

// unpackKernel downloads the packages (apt checks them against the signed archive) and keeps the image and the modules wanted.
func unpackKernel(ctx context.Context, pkgs []string, dir string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := command(ctx, tmp, "apt-get", append([]string{"download"}, pkgs...)...); err != nil {
		return fmt.Errorf("%w (if the package is unknown or gone, run apt-get update)", err)
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	root := filepath.Join(tmp, "root")
	for _, deb := range debs {
		if _, err := command(ctx, tmp, "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	images, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if len(images) != 1 {
		return fmt.Errorf("package %s holds %d kernel images, want one", pkgs[0], len(images))
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	if _, err := os.Stat(filepath.Join(root, "lib")); os.IsNotExist(err) {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	keep := filepath.Join(tmp, "keep")
	if err := os.MkdirAll(filepath.Join(keep, "modules"), 0o755); err != nil {
		return err
	}
	if err := copyModules(ctx, root, version, filepath.Join(keep, "modules")); err != nil {
		return err
	}
	if err := os.Rename(images[0], filepath.Join(keep, "vmlinuz")); err != nil {
		return err
	}
	return os.Rename(keep, dir)
}

// copyModules writes the modules, unpacked and numbered in load order.
func copyModules(ctx context.Context, root, version, dst string) error {
	if _, err := command(ctx, "", "depmod", "-b", root, version); err != nil {
		return err
	}
	out, err := command(ctx, "", "modprobe", append([]string{"-d", root, "-S", version, "--show-depends", "-a"}, guestModules...)...)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "insmod" || seen[fields[1]] {
			continue
		}
		seen[fields[1]] = true
		code, err := readModule(ctx, fields[1])
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(filepath.Base(fields[1]), ".ko")
		if err := os.WriteFile(filepath.Join(dst, fmt.Sprintf("%02d-%s.ko", len(seen), name)), code, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func readModule(ctx context.Context, path string) ([]byte, error) {
	switch filepath.Ext(path) {
	case ".xz":
		return command(ctx, "", "xz", "-dc", path)
	case ".zst":
		return command(ctx, "", "zstd", "-dc", path)
	}
	return os.ReadFile(path)
}

// command runs a host tool and returns its output.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	path, err := tool(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
