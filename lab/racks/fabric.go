package racks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Fabric is an emulated data centre that is up.
type Fabric struct{ Config }

// Probe reports why no fabric can be built here. The error wraps [os.ErrPermission] where this user may not make network
// namespaces, or no more of them, and nothing else is wrong.
func Probe(ctx context.Context) error {
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("racks of network namespaces: %w; install it: apt-get install -y iproute2", err)
		}
	}
	cmd := exec.CommandContext(ctx, "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	switch err := cmd.Run(); {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("racks of network namespaces need root: %w", err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: no more network namespaces: raise user.max_net_namespaces: %w", os.ErrPermission, err)
	}
	name := fmt.Sprintf("rwprobe%d", os.Getpid())
	if err := sh(ctx, fmt.Sprintf("ip netns add %s && ip -n %s link set lo up && ip netns del %s", name, name, name)); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	return nil
}

// sh runs a script that must succeed, line by line.
func sh(ctx context.Context, script string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ex")
	cmd.Stdin = strings.NewReader(script)
	cmd.WaitDelay = time.Second
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n") // the last two: the command, and what it said
	return fmt.Errorf("%w: %s", err, strings.Join(lines[max(0, len(lines)-2):], ": "))
}

// Up builds a fabric, in place of one of the same name that a killed process left.
func Up(ctx context.Context, c Config) (*Fabric, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	f := &Fabric{c}
	if err := f.unused(ctx); err != nil {
		return nil, err
	}
	_ = f.Close() // mostly it does not exist
	if err := sh(ctx, c.script()); err != nil {
		return nil, errors.Join(fmt.Errorf("build racks %s: %w", c.Name, err), f.Close())
	}
	return f, nil
}

// unused reports whether processes run in a fabric of this name. Those of a process that was killed end soon after it.
func (f *Fabric) unused(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		out, _ := exec.CommandContext(ctx, "ip", "netns", "pids", f.Aggregator(0).Namespace).Output() // it fails without the namespace
		pids := strings.Fields(string(out))
		if len(pids) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("racks named %q are in use by processes %v: end these, or use another name", f.Name, pids)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close removes the fabric. Processes in it stay, without a network: end them before.
func (f *Fabric) Close() error {
	ctx := context.Background()
	present, err := exec.CommandContext(ctx, "ip", "netns", "list").Output()
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	var script strings.Builder
	for line := range strings.Lines(f.removal()) {
		name := strings.TrimSpace(line[strings.LastIndex(line, " "):])
		for there := range strings.Lines(string(present)) {
			if fields := strings.Fields(there); len(fields) > 0 && fields[0] == name {
				script.WriteString(line)
			}
		}
	}
	if script.Len() == 0 {
		return nil
	}
	return sh(ctx, script.String())
}

// PowerOff kills every process of a host.
func (f *Fabric) PowerOff(ctx context.Context, h Host) error {
	return sh(ctx, fmt.Sprintf("ip netns pids %s | xargs -r kill -9\n", h.Namespace))
}

// CutUplink takes a rack's uplink down, or up again.
func (f *Fabric) CutUplink(ctx context.Context, rack int, cut bool) error {
	state := "up"
	if cut {
		state = "down"
	}
	return sh(ctx, fmt.Sprintf("ip -n %s link set %s %s", f.switches(), downlinkPort(rack), state))
}

// SetRate shapes the links of a rack's workers anew.
func (f *Fabric) SetRate(ctx context.Context, rack int, rate float64) error {
	var b strings.Builder
	hosts, ports := f.hosts(rack)
	for i, h := range hosts[1:] {
		for _, end := range [][2]string{{h.Namespace, Interface}, {f.switches(), ports[i+1]}} {
			fmt.Fprintf(&b, "tc -n %s qdisc change dev %s root tbf rate %.0fbit burst %s limit %s\n", end[0], end[1], rate, burst, queue)
		}
	}
	return sh(ctx, b.String())
}

// SetUplink shapes a rack's uplink anew, in both directions.
func (f *Fabric) SetUplink(ctx context.Context, rack int, rate float64) error {
	var b strings.Builder
	for _, port := range []string{UplinkPort(rack), downlinkPort(rack)} {
		fmt.Fprintf(&b, "tc -n %s qdisc change dev %s root tbf rate %.0fbit burst %s limit %s\n", f.switches(), port, rate, burst, queue)
	}
	return sh(ctx, b.String())
}

// Counters count what went through a port, as `ip -s link` does: with the headers of each frame, of which there is one for up to
// 64 KiB because the kernel divides them later. That is 0.1% more than the payload of full frames.
type Counters struct {
	Sent, Received uint64 // bytes
	Dropped        uint64 // frames
}

// Since returns what was counted after an earlier reading.
func (c Counters) Since(before Counters) Counters {
	return Counters{c.Sent - before.Sent, c.Received - before.Received, c.Dropped - before.Dropped}
}

// Counters reads all ports, by their names.
func (f *Fabric) Counters(ctx context.Context) (map[string]Counters, error) {
	out, err := exec.CommandContext(ctx, "ip", "-n", f.switches(), "-s", "-j", "link").Output()
	if err != nil {
		return nil, fmt.Errorf("read the counters of racks %s: %w", f.Name, err)
	}
	return parseCounters(out)
}

func parseCounters(text []byte) (map[string]Counters, error) {
	type direction struct{ Bytes, Dropped uint64 }
	var links []struct {
		Name  string                     `json:"ifname"`
		Stats struct{ RX, TX direction } `json:"stats64"`
	}
	if err := json.Unmarshal(text, &links); err != nil {
		return nil, fmt.Errorf("read the counters that ip printed: %w", err)
	}
	ports := map[string]Counters{}
	for _, l := range links {
		ports[l.Name] = Counters{l.Stats.TX.Bytes, l.Stats.RX.Bytes, l.Stats.TX.Dropped + l.Stats.RX.Dropped}
	}
	return ports, nil
}

// Retransmits returns how many segments all hosts have sent again: more than a few, and a run shows losses, not rates.
func (f *Fabric) Retransmits(ctx context.Context) (n uint64, err error) {
	for rack := range f.Racks {
		hosts, _ := f.hosts(rack)
		for _, h := range hosts {
			argv := h.Command("nstat", "-a", "-s", "-z", "-j", "TcpRetransSegs")
			out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
			if err != nil {
				return 0, fmt.Errorf("read what %s sent again: %w", h.Namespace, err)
			}
			var stat struct {
				Kernel struct{ TcpRetransSegs uint64 } `json:"kernel"`
			}
			if err := json.Unmarshal(out, &stat); err != nil {
				return 0, fmt.Errorf("read what %s sent again: %w", h.Namespace, err)
			}
			n += stat.Kernel.TcpRetransSegs
		}
	}
	return n, nil
}
