package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/launch"
)

// SharedDir is the path of [Guest.Dir] in a guest.
const SharedDir = "/run/lab"

// NIC is a network interface of a guest, with a soft-RoCE device on it.
type NIC struct {
	// Wire is the wire that the NIC is plugged into. If nil, the NIC is a dummy interface, on which RDMA reaches only itself.
	Wire *Wire
	// Node is the NUMA node whose PCI bus holds the NIC. Dummy interfaces have none.
	Node int
	// Addr is its address, as in "10.77.0.1/24".
	Addr string
}

// Config describes a guest.
type Config struct {
	Name string
	// CPUs, 2 if zero. Pollers that cover every CPU starve soft-RoCE's own work.
	CPUs int
	// MemoryMB, 1024 if zero.
	MemoryMB int
	// Nodes is the number of NUMA nodes, 1 if zero; processors and memory are split evenly.
	Nodes int
	NICs  []NIC
	// Deadline limits the life of the guest. If 0, it is 5 minutes.
	Deadline time.Duration
}

func (c *Config) setDefaults() error {
	if c.CPUs == 0 {
		c.CPUs = 2
	}
	if c.MemoryMB == 0 {
		c.MemoryMB = 1024
	}
	if c.Nodes == 0 {
		c.Nodes = 1
	}
	if c.Deadline == 0 {
		c.Deadline = 5 * time.Minute
	}
	if c.CPUs%c.Nodes != 0 {
		return fmt.Errorf("guest %s: %d processors do not split over %d NUMA nodes", c.Name, c.CPUs, c.Nodes)
	}
	for i, n := range c.NICs {
		if n.Node < 0 || n.Node >= c.Nodes {
			return fmt.Errorf("guest %s: nic%d is on NUMA node %d of %d", c.Name, i, n.Node, c.Nodes)
		}
	}
	return nil
}

// ErrGuestGone is wrapped by the errors of calls on a guest that has ended.
var ErrGuestGone = errors.New("guest is gone")

// Guest is a running guest.
type Guest struct {
	cfg     Config
	macs    []net.HardwareAddr
	dir     string
	console *console
	agent   *agent
	monitor *monitor
	qemu    *launch.Process
	gone    chan struct{} // closed when QEMU has exited
	cause   atomic.Pointer[error]
	stderr  bytes.Buffer // read only once gone
	closing sync.Once
	result  error
}

// bootAttempts bounds how often a guest is booted. A kernel patches its own code while it boots. Now and then the emulator lets
// another processor run half-patched code, which ends in an Oops, or in a processor that waits for ever. Nothing of ours has run by
// then.
const bootAttempts = 3

// Boot starts a guest and returns when its devices are up.
func Boot(ctx context.Context, cfg Config) (*Guest, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		g, err := boot(ctx, cfg, bootAttempts+1-attempt)
		if err == nil {
			return g, nil
		}
		again := errors.Is(err, ErrKernel) || errors.Is(err, context.DeadlineExceeded)
		if attempt == bootAttempts || !again || ctx.Err() != nil {
			return nil, fmt.Errorf("boot guest %s, attempt %d: %w", cfg.Name, attempt, err)
		}
	}
}

// boot makes one of so many attempts that are left, in its share of the time.
func boot(ctx context.Context, cfg Config, left int) (*Guest, error) {
	g, err := start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	if err := g.bringUp(ctx); err != nil {
		err = fmt.Errorf("%w\nconsole:\n%s", err, g.Console())
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Guest) bringUp(ctx context.Context) error {
	if err := g.agent.waitReady(ctx); err != nil {
		return fmt.Errorf("wait for its init: %w", err)
	}
	if out, err := g.Run(ctx, g.setupScript()); err != nil {
		return fmt.Errorf("set up its network: %w: %s", err, out)
	}
	return nil
}

// start makes all that the guest needs and launches QEMU.
func start(ctx context.Context, cfg Config) (g *Guest, err error) {
	for _, name := range []string{"ip", "rdma"} {
		if _, err := tool(name); err != nil {
			return nil, err
		}
	}
	qemu, err := tool("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	busybox, err := staticBusybox()
	if err != nil {
		return nil, err
	}
	k, err := fetchKernel(ctx)
	if err != nil {
		return nil, err
	}
	image, err := initramfs(k, busybox)
	if err != nil {
		return nil, err
	}
	dir, err := makeWorkDir()
	if err != nil {
		return nil, err
	}
	g = &Guest{cfg: cfg, dir: dir, gone: make(chan struct{})}
	var lines [3]net.Conn
	defer func() {
		if err == nil {
			return
		}
		for _, l := range lines {
			if l != nil {
				l.Close()
			}
		}
		os.RemoveAll(dir)
	}()
	if err := os.Mkdir(g.Dir(), 0o755); err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initramfs")
	if err := os.WriteFile(initrd, image, 0o644); err != nil {
		return nil, err
	}
	q := newQEMU(cfg, dir, k.vmlinuz, initrd)
	defer q.closeChildEnds()
	for i, id := range []string{"console", "agent", "monitor"} {
		if lines[i], err = q.line(id); err != nil {
			return nil, err
		}
	}
	if g.macs, err = q.plug(cfg.NICs); err != nil {
		return nil, err
	}
	if err := g.launch(exec.Command(qemu, q.args...), q.files); err != nil {
		return nil, err
	}
	g.console = newConsole(lines[0])
	g.agent = newAgent(lines[1], dir, g.gone, g.goneError)
	g.monitor = newMonitor(lines[2])
	return g, nil
}

// launch starts QEMU, which ends with this process and at the guest's deadline.
func (g *Guest) launch(cmd *exec.Cmd, files []*os.File) error {
	cmd.ExtraFiles = files
	cmd.Stdout, cmd.Stderr = &g.stderr, &g.stderr
	var err error
	if g.qemu, err = launch.Start(cmd); err != nil {
		return err
	}
	deadline := time.AfterFunc(g.cfg.Deadline, func() {
		g.fail(fmt.Errorf("killed at its deadline of %v", g.cfg.Deadline))
		g.end()
	})
	go func() {
		err := g.qemu.Wait()
		deadline.Stop()
		g.fail(fmt.Errorf("QEMU exited: %w: %s", errOr(err, "the guest powered off"), strings.TrimSpace(g.stderr.String())))
		close(g.gone)
	}()
	return nil
}

func (g *Guest) end() { _ = g.qemu.Signal(syscall.SIGKILL) } // fails only for processes of another user

func errOr(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// fail keeps the first reason for the guest's end.
func (g *Guest) fail(err error) { g.cause.CompareAndSwap(nil, &err) }

func (g *Guest) goneError() error {
	return fmt.Errorf("guest %s: %w: %w", g.cfg.Name, ErrGuestGone, *g.cause.Load())
}

// Dir returns the directory shared with the guest, on the host. Close removes it.
func (g *Guest) Dir() string { return filepath.Join(g.dir, "shared") }

// GuestPath returns the path in a guest of a file of the host, also of one below /tmp and /run.
func GuestPath(hostPath string) string { return filepath.Join("/run/host", hostPath) }

// Name returns the guest's host name.
func (g *Guest) Name() string { return g.cfg.Name }

// Addr returns the address of a NIC, without its prefix length.
func (g *Guest) Addr(nic int) string {
	addr, _, _ := strings.Cut(g.cfg.NICs[nic].Addr, "/")
	return addr
}

// Carried returns how many bytes the wire of two guests' first NICs has carried from one to the other, headers included.
func Carried(from, to *Guest) uint64 { return from.cfg.NICs[0].Wire.Carried(from.macs[0], to.macs[0]) }

// Console returns the end of the output of the guest's kernel.
func (g *Guest) Console() string { return g.console.tail() }

// SetLink plugs a NIC's cable in or pulls it out. The guest sees the carrier change.
func (g *Guest) SetLink(nic int, up bool) error {
	if g.cfg.NICs[nic].Wire == nil {
		return fmt.Errorf("guest %s: nic%d is a dummy interface and has no cable", g.cfg.Name, nic)
	}
	if err := g.monitor.setLink(netID(nic), up); err != nil {
		return fmt.Errorf("guest %s: set link of nic%d: %w", g.cfg.Name, nic, err)
	}
	return nil
}

// Kill ends the guest as a power failure would.
func (g *Guest) Kill() {
	g.fail(errors.New("killed"))
	g.end()
	<-g.gone
}

// Close ends the guest and removes its files. It returns the complaints of the guest's kernel.
func (g *Guest) Close() error {
	g.closing.Do(func() {
		g.Kill()
		g.agent.close()
		g.monitor.close()
		g.console.close()
		g.result = errors.Join(g.console.complaint(g.cfg.Name), os.RemoveAll(g.dir))
	})
	return g.result
}
