package door

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// ofAllUsers reports whether all users of this host connect from an address unless they ask for another.
func ofAllUsers(a netip.Addr) bool {
	return a.WithZone("") == netip.IPv6Loopback() || a == netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// whose returns the address that a peer is known by: its own or, if all users of this host have that, ::1 with the user as zone.
func whose(c net.Conn) netip.Addr {
	a := address(c.RemoteAddr())
	if !ofAllUsers(a) {
		return a
	}
	uid, err := userOf(c)
	if err != nil { // the peer has gone, or the kernel does not say
		return a
	}
	return netip.IPv6Loopback().WithZone(fmt.Sprint("user ", uid))
}

// The request for one socket of linux/inet_diag.h and linux/sock_diag.h, and the places of state and user in its answer.
const (
	diagByFamily = 20
	diagRequest  = unix.NLMSG_HDRLEN + 56
	diagPorts    = unix.NLMSG_HDRLEN + 8 // in network order, and then both addresses
	diagCookie   = diagPorts + 40
	diagState    = unix.NLMSG_HDRLEN + 1
	diagUser     = unix.NLMSG_HDRLEN + 64
	stateListen  = 10
	diagWithin   = 100 * time.Millisecond
)

// userOf returns the user of a peer's socket on this host, by the kernel's sock_diag.
func userOf(c net.Conn) (uint32, error) {
	from, _ := c.RemoteAddr().(*net.TCPAddr)
	to, _ := c.LocalAddr().(*net.TCPAddr)
	if from == nil || to == nil {
		return 0, fmt.Errorf("a connection from %v to %v has no user", c.RemoteAddr(), c.LocalAddr())
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	within := unix.NsecToTimeval(diagWithin.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &within); err != nil {
		return 0, err
	}
	var answer [512]byte
	if err := unix.Sendto(fd, diagOf(from.AddrPort(), to.AddrPort()), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	n, _, err := unix.Recvfrom(fd, answer[:], 0)
	if err != nil {
		return 0, err
	}
	if n < diagUser+4 || binary.NativeEndian.Uint16(answer[4:]) != diagByFamily || answer[diagState] == stateListen {
		return 0, fmt.Errorf("the kernel has no socket at %v", from)
	}
	return binary.NativeEndian.Uint32(answer[diagUser:]), nil
}

// diagOf returns the request for the socket that is connected from an address to another.
func diagOf(from, to netip.AddrPort) []byte {
	b := make([]byte, diagRequest)
	src, dst := from.Addr().Unmap(), to.Addr().Unmap()
	family := byte(unix.AF_INET6)
	if src.Is4() {
		family = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(b, diagRequest)
	binary.NativeEndian.PutUint16(b[4:], diagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b[unix.NLMSG_HDRLEN], b[unix.NLMSG_HDRLEN+1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN+4:], ^uint32(0)) // of any state
	binary.BigEndian.PutUint16(b[diagPorts:], from.Port())
	binary.BigEndian.PutUint16(b[diagPorts+2:], to.Port())
	copy(b[diagPorts+4:], src.AsSlice())
	copy(b[diagPorts+20:], dst.AsSlice())
	binary.NativeEndian.PutUint64(b[diagCookie:], ^uint64(0)) // any
	return b
}
