package door

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Listen listens for TCP connections, without multiple paths: their sockets take no filter.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	l := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}}
	l.SetMultipathTCP(false)
	return l.Listen(ctx, "tcp", address)
}

// maxKeptOut bounds the addresses of a filter: the kernel takes 4096 instructions, and an address of IPv6 needs five.
const maxKeptOut = 800

const (
	netHeader   = 0xfff00000 // SKF_NET_OFF: offsets from here count from the IP header
	sourceOfIP4 = netHeader + 12
	sourceOfIP6 = netHeader + 8
	tcpFlags    = 13 // the packet begins at the TCP header
	synFlag     = 2
)

var pass, drop = bpf.RetConstant{Val: 1 << 30}, bpf.RetConstant{Val: 0}

// keepOut lets the kernel drop connection requests of these addresses: they cost the process nothing. Connections that are
// open, which inherit the program, go on.
func keepOut(l *net.TCPListener, addrs []netip.Addr) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	code, err := bpf.Assemble(filter(addrs))
	if err != nil {
		return fmt.Errorf("assemble a filter of %d addresses: %w", len(addrs), err)
	}
	program := make([]unix.SockFilter, len(code))
	for i, c := range code {
		program[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	if err == nil {
		err = refused
	}
	return err
}

// filter returns the program of [keepOut].
func filter(addrs []netip.Addr) []bpf.Instruction {
	var ip4, ip6 []bpf.Instruction
	for _, a := range addrs {
		b := a.AsSlice()
		if a.Is4() {
			ip4 = append(ip4, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b), SkipFalse: 1}, drop)
			continue
		}
		ip6 = append(ip6,
			bpf.LoadAbsolute{Off: sourceOfIP6, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b), SkipFalse: 3},
			bpf.LoadAbsolute{Off: sourceOfIP6 + 4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b[4:]), SkipFalse: 1},
			drop)
	}
	all := []bpf.Instruction{
		bpf.LoadAbsolute{Off: tcpFlags, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: synFlag, SkipTrue: 1},
		pass,
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(ip4)) + 2},
		bpf.LoadAbsolute{Off: sourceOfIP4, Size: 4},
	}
	all = append(append(all, ip4...), pass)
	return append(append(all, ip6...), pass)
}
