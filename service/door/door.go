// Package door keeps strangers from using up what members need: connections, descriptors, calls and time. A stranger is a peer who
// has not shown a session yet. Nothing here reads a request.
package door

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// Limits bound what all strangers together have at once. Where the house is full, the oldest of the peer with the most gives way:
// whoever comes late with a good reason gets in.
type Limits struct {
	Connections int // of all strangers
	Calls       int // of all strangers
	PerPeer     int // calls of one address
	// Connections and calls of one address, per second and at once. An address with a member may connect more often.
	Rate  rate.Limit
	Burst int
	// Connections of all addresses without a member. Beyond it, one that has come leastOfPeer times waits.
	AllRate  rate.Limit
	AllBurst int
	KeptOut  time.Duration // for so long the kernel drops what an address sends that connects too often
}

// Default suits a rack: a thousand workers may come at once.
func Default() Limits {
	return Limits{Connections: 384, Calls: 64, PerPeer: 16, Rate: 20, Burst: 1024, AllRate: 20, AllBurst: 4096,
		KeptOut: 10 * time.Second}
}

// leastOfPeer is the number of connections that an address may have, however many others come.
const leastOfPeer = 8

// maxPeers bounds how many addresses are remembered; an address that has nothing open may be forgotten.
const maxPeers = 4096

// maxOfMember bounds the connections by which one member counts as such.
const maxOfMember = 16

// Door counts connections and calls.
type Door struct {
	limits  Limits
	refused func(reason string)
	all     *rate.Limiter

	mu        sync.Mutex
	keptOut   map[netip.Addr]time.Time // until when
	peers     map[netip.Addr]*peer
	strangers []*Conn // oldest first
	calls     []*Call // oldest first
	members   map[any]*member
}

// member is a caller that has shown who it is.
type member struct {
	conns []*Conn
	meter *meter
}

// peer is an address that has come.
type peer struct {
	connections, members int
	rate, least          *rate.Limiter
}

// New makes a door. It calls refused with the reason whenever it turns someone away.
func New(l Limits, refused func(reason string)) *Door {
	return &Door{limits: l, refused: refused, all: rate.NewLimiter(l.AllRate, l.AllBurst), keptOut: map[netip.Addr]time.Time{},
		peers: map[netip.Addr]*peer{}, members: map[any]*member{}}
}

// Listen returns a listener whose connections pass the door.
func (d *Door) Listen(l net.Listener) net.Listener { return &listener{Listener: l, d: d} }

type listener struct {
	net.Listener
	d       *Door
	keeping sync.Mutex // held while the filter changes
}

// Accept returns the next connection that may come in, and closes connections that may not.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			l.d.refused("descriptors")
		}
		if err != nil {
			return nil, err
		}
		if in := l.d.enter(c); in != nil {
			return in, nil
		}
		if t, ok := c.(*net.TCPConn); ok {
			t.SetLinger(0)
		}
		from := address(c.RemoteAddr())
		c.Close()
		if l.d.keepOut(from) {
			l.filter()
		}
	}
}

// filter tells the kernel who is kept out, now and when that ends.
func (l *listener) filter() {
	t, ok := l.Listener.(*net.TCPListener)
	if !ok {
		return
	}
	l.keeping.Lock()
	defer l.keeping.Unlock()
	if keepOut(t, l.d.keptOutNow()) == nil { // else the listener is closed, or the kernel has no filters: each is turned away
		time.AfterFunc(l.d.limits.KeptOut+time.Millisecond, func() {
			l.keeping.Lock()
			defer l.keeping.Unlock()
			keepOut(t, l.d.keptOutNow())
		})
	}
}

// keepOut keeps an address out for some time. It returns false if the address is kept out already, has a member, or is that of all
// users of this host.
func (d *Door) keepOut(a netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.keptOut[a]
	if p := d.peers[a]; ok || len(d.keptOut) >= maxKeptOut || !a.IsValid() || ofAllUsers(a) || p != nil && p.members > 0 {
		return false
	}
	d.keptOut[a] = time.Now().Add(d.limits.KeptOut)
	return true
}

// keptOutNow lists the addresses that are kept out, and forgets others.
func (d *Door) keptOutNow() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.keptOut, func(_ netip.Addr, until time.Time) bool { return time.Now().After(until) })
	return slices.Collect(maps.Keys(d.keptOut))
}

// Conn is a connection that has come in.
type Conn struct {
	net.Conn
	d      *Door
	addr   netip.Addr
	peer   *peer
	member any // nil: a stranger's; guarded by d.mu
	closed bool
	heard  atomic.Pointer[time.Time] // when the peer last sent something, or closed
	meter  atomic.Pointer[meter]
	gone   chan struct{} // closed with the connection
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	c.settle()
	n, err := c.Conn.Read(b)
	c.meter.Load().add(-float64(readCost + n))
	own := errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded)
	if n > 0 || err != nil && !own {
		now := time.Now()
		c.heard.Store(&now)
	}
	return n, err
}

// Silent returns for how long nothing has come from the peer, not even its end. A nil connection does not know.
func (c *Conn) Silent() time.Duration {
	if c == nil {
		return 0
	}
	return time.Since(*c.heard.Load())
}

// Addr returns the address by which the peer is known. A nil connection has none.
func (c *Conn) Addr() netip.Addr {
	if c == nil {
		return netip.Addr{}
	}
	return c.addr
}

// address returns what a peer is known by: its address, of IPv6 the network, which one host has whole.
func address(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() && !ip.IsLoopback() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// peer finds or makes a peer. The caller holds d.mu.
func (d *Door) peer(a netip.Addr) *peer {
	p := d.peers[a]
	if p != nil {
		return p
	}
	if len(d.peers) >= maxPeers {
		for old, p := range d.peers {
			if p.connections == 0 {
				delete(d.peers, old)
			}
		}
	}
	p = &peer{rate: rate.NewLimiter(d.limits.Rate, d.limits.Burst), least: rate.NewLimiter(d.limits.Rate/leastOfPeer, leastOfPeer)}
	d.peers[a] = p
	return p
}

// enter takes a connection in. It returns nil if the connection may not come in.
func (d *Door) enter(c net.Conn) *Conn {
	in := &Conn{Conn: c, d: d, addr: whose(c), gone: make(chan struct{})}
	now := time.Now()
	in.heard.Store(&now)
	in.meter.Store(newMeter(strangersRate, strangersBurst, strangersBurst))
	d.mu.Lock()
	in.peer = d.peer(in.addr)
	if in.peer.members == 0 && !d.may(in.peer) {
		d.mu.Unlock()
		d.refused("connection_rate")
		return nil
	}
	in.peer.connections++
	d.strangers = append(d.strangers, in)
	var out *Conn
	if len(d.strangers) > d.limits.Connections {
		out = oldest(d.strangers, (*Conn).Addr)
	}
	d.mu.Unlock()
	if out != nil {
		d.refused("connections")
		out.Close()
	}
	return in
}

// may reports whether a peer without a member may connect once more. The caller holds d.mu.
func (d *Door) may(p *peer) bool {
	fresh := p.least.Allow()
	return p.rate.Allow() && (d.all.Allow() || fresh)
}

// oldest returns the first of all that the peer with the most of them has.
func oldest[T any](all []T, of func(T) netip.Addr) T {
	count := make(map[netip.Addr]int, len(all))
	for _, x := range all {
		count[of(x)]++
	}
	return slices.MaxFunc(all, func(a, b T) int { return cmp.Compare(count[of(a)], count[of(b)]) })
}

// Close closes the connection. It counts no more.
func (c *Conn) Close() error {
	d := c.d
	d.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.gone)
		c.peer.connections--
		if c.member != nil {
			c.peer.members--
			m := d.members[c.member]
			if m.conns = without(m.conns, c); len(m.conns) == 0 {
				delete(d.members, c.member)
			}
		} else {
			d.strangers = without(d.strangers, c)
		}
	}
	d.mu.Unlock()
	return c.Conn.Close()
}

// Promote makes the connection that of a member that calls. It stops counting as a stranger's.
func (c *Conn) Promote(who any) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.closed {
		return
	}
	m := d.members[who]
	if m == nil {
		m = &member{meter: newMeter(membersRate, membersBurst, membersBurst)}
	}
	if c.member == nil && len(m.conns) < maxOfMember {
		c.member = who
		m.conns = append(m.conns, c)
		d.members[who] = m
		c.meter.Store(m.meter)
		c.peer.members++
		d.strangers = without(d.strangers, c)
	}
	c.meter.Load().add(-memberCall)
}

// Dismiss makes the connections of a member that is gone strangers' again.
func (d *Door) Dismiss(who any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[who]
	if m == nil {
		return
	}
	for _, c := range m.conns {
		c.member = nil
		c.meter.Store(newMeter(strangersRate, strangersBurst, dismissedBurst))
		c.peer.members--
		d.strangers = append(d.strangers, c)
	}
	delete(d.members, who)
}

func without[T comparable](all []T, one T) []T {
	return slices.DeleteFunc(all, func(o T) bool { return o == one })
}

// Call is a stranger's call.
type Call struct{ conn *Conn }

// Count counts a stranger's call. It returns false, and closes the connection, if its address calls too often.
func (c *Conn) Count() bool {
	d := c.d
	d.mu.Lock()
	may := c.peer.rate.Allow()
	d.mu.Unlock()
	if may {
		c.meter.Load().add(strangerCall)
	} else {
		d.refused("call_rate")
		c.Close()
	}
	return may
}

// Call begins a stranger's call. It returns nil if the connection is closed. Where too many calls are under way, the oldest one's
// connection is closed: honest calls are short.
func (c *Conn) Call() *Call {
	d := c.d
	call := &Call{c}
	d.mu.Lock()
	if c.closed {
		d.mu.Unlock()
		return nil
	}
	d.calls = append(d.calls, call)
	var own []*Call
	for _, o := range d.calls {
		if o.conn.addr == c.addr {
			own = append(own, o)
		}
	}
	var out *Call
	switch {
	case len(own) > d.limits.PerPeer:
		out = own[0]
	case len(d.calls) > d.limits.Calls:
		out = oldest(d.calls, func(c *Call) netip.Addr { return c.conn.addr })
	}
	d.mu.Unlock()
	if out != nil {
		d.refused("calls")
		out.End()
		out.conn.Close()
	}
	return call
}

// End ends the call. A call that goes on as a member's ends as a stranger's.
func (c *Call) End() {
	d := c.conn.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = without(d.calls, c)
}

// Strangers returns how many connections strangers have.
func (d *Door) Strangers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.strangers)
}

// Of finds the door's connection below another, such as one of TLS. It returns nil if the connection came by another way.
func Of(c net.Conn) *Conn {
	for {
		switch at := c.(type) {
		case *Conn:
			return at
		case interface{ NetConn() net.Conn }:
			c = at.NetConn()
		default:
			return nil
		}
	}
}

// BodyWithin bounds the time of a body, AnswerWithin the time that each part of an answer waits for its reader.
const (
	BodyWithin   = 20 * time.Second
	AnswerWithin = 10 * time.Second
)
