package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
)

// qemu is a command line and the file descriptors it refers to. Every line to the guest is a socket pair: nothing listens, and
// nothing stays in the file system.
type qemu struct {
	args  []string
	files []*os.File // QEMU's, numbered from 3
}

// With tsc=reliable the guest reads clocks without asking the emulator, whose processors' counters agree although it does not say
// so. The watchdogs are off: on a busy host a guest's processor can stand still for seconds, for which they would blame the kernel.
func kernelCommandLine() string {
	return fmt.Sprintf("console=ttyS0 panic=-1 loglevel=5 mitigations=off tsc=reliable tsc_early_khz=%d random.trust_cpu=on "+
		"no_timer_check highres=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1", tscKHz())
}

func newQEMU(cfg Config, dir, vmlinuz, initrd string) *qemu {
	shared := filepath.Join(dir, "shared")
	q := &qemu{}
	accel, cpu := "tcg,thread=multi", "max"
	if os.Getenv("RACKWEAVE_LAB_ACCEL") == "kvm" {
		accel, cpu = "kvm", "host"
	}
	q.add("-machine", "q35", "-accel", accel, "-cpu", cpu, "-smp", fmt.Sprintf("%d,sockets=%d", cfg.CPUs, cfg.Nodes), "-m",
		fmt.Sprintf("%dM", cfg.MemoryMB), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", vmlinuz, "-initrd", initrd, "-append", kernelCommandLine(),
		"-device", "virtio-rng-pci",
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=root,bus=pcie.0",
		"-fsdev", "local,id=lab,path="+shared+",security_model=none",
		"-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab,bus=pcie.0")
	if cfg.Nodes > 1 {
		q.nodes(cfg)
	}
	return q
}

func (q *qemu) add(args ...string) { q.args = append(q.args, args...) }

// nodes splits processors and memory over NUMA nodes and gives each node a PCI bus of its own.
func (q *qemu) nodes(cfg Config) {
	cpus := cfg.CPUs / cfg.Nodes
	for n := range cfg.Nodes {
		q.add("-object", fmt.Sprintf("memory-backend-ram,id=mem%d,size=%dM", n, cfg.MemoryMB/cfg.Nodes),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=mem%d", n, n*cpus, (n+1)*cpus-1, n),
			"-device", fmt.Sprintf("pxb-pcie,id=pxb%d,bus_nr=%d,numa_node=%d,bus=pcie.0", n, 64*(n+1), n))
	}
}

// line connects a character device to the returned socket.
func (q *qemu) line(id string) (net.Conn, error) {
	conn, fd, err := q.socket()
	if err != nil {
		return nil, err
	}
	q.add("-chardev", fmt.Sprintf("socket,id=%s,fd=%d", id, fd))
	switch id {
	case "console":
		q.add("-serial", "chardev:console")
	case "agent":
		// A second serial line would not do: emulated UARTs lose an interrupt now and then, and the reader then waits for ever.
		q.add("-device", "virtio-serial-pci,bus=pcie.0", "-device", "virtserialport,chardev=agent,name=agent")
	case "monitor":
		q.add("-mon", "chardev=monitor,mode=control")
	}
	return conn, nil
}

// stations numbers the NICs of all guests of this process.
var stations atomic.Uint32

// plug adds the NICs that have wires. The addresses of those without are nil.
func (q *qemu) plug(nics []NIC) ([]net.HardwareAddr, error) {
	macs := make([]net.HardwareAddr, len(nics))
	for i, nic := range nics {
		if nic.Wire == nil {
			continue
		}
		conn, fd, err := q.socket()
		if err != nil {
			return nil, err
		}
		nic.Wire.attach(conn)
		s := stations.Add(1)
		macs[i] = net.HardwareAddr{0x52, 0x54, 0, byte(s >> 16), byte(s >> 8), byte(s)}
		bus := "pcie.0"
		if q.hasNodes() {
			bus = fmt.Sprintf("port%d", i)
			q.add("-device", fmt.Sprintf("pcie-root-port,id=%s,bus=pxb%d,chassis=%d", bus, nic.Node, i+1))
		}
		q.add("-netdev", fmt.Sprintf("socket,id=%s,fd=%d", netID(i), fd),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=%s,bus=%s", netID(i), macs[i], bus))
	}
	return macs, nil
}

func (q *qemu) hasNodes() bool {
	for _, a := range q.args {
		if a == "-numa" {
			return true
		}
	}
	return false
}

func netID(nic int) string { return fmt.Sprintf("nic%d", nic) }

// socket makes a socket pair. It returns our end, and QEMU's number of the other end.
func (q *qemu) socket() (net.Conn, int, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "guest")
	ours := os.NewFile(uintptr(fds[0]), "host")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, 0, fmt.Errorf("socketpair: %w", err)
	}
	q.files = append(q.files, theirs)
	return conn, 2 + len(q.files), nil
}

func (q *qemu) closeChildEnds() {
	for _, f := range q.files {
		f.Close()
	}
}
