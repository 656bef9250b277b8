package lab

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// Wire is an Ethernet segment that joins the NICs plugged into it. It learns the place of each station, as a switch does, and
// counts what they send each other.
type Wire struct {
	mu       sync.Mutex
	ports    map[*port]struct{}
	stations map[station]*port
	carried  map[[2]station]uint64 // bytes of frames, from one to the other
}

// station is the address of a NIC.
type station [6]byte

// NewWire makes a wire with nothing plugged in. It needs no closing: it ends with its guests.
func NewWire() *Wire {
	return &Wire{ports: map[*port]struct{}{}, stations: map[station]*port{}, carried: map[[2]station]uint64{}}
}

// Carried returns how many bytes one NIC has sent the other, with the headers of each frame.
func (w *Wire) Carried(from, to net.HardwareAddr) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.carried[[2]station{station(from), station(to)}]
}

// port is one NIC's end. QEMU's socket netdev carries frames in a stream: four bytes of length, most significant first, and the
// frame.
type port struct {
	conn net.Conn
	mu   sync.Mutex // a frame is written whole
}

const (
	lengthBytes = 4
	maxFrame    = 1 << 16
)

func (w *Wire) attach(conn net.Conn) {
	p := &port{conn: conn}
	w.mu.Lock()
	w.ports[p] = struct{}{}
	w.mu.Unlock()
	go w.carry(p)
}

func (w *Wire) carry(p *port) {
	defer w.detach(p)
	r := bufio.NewReaderSize(p.conn, 256<<10)
	buf := make([]byte, lengthBytes+maxFrame)
	for {
		if _, err := io.ReadFull(r, buf[:lengthBytes]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(buf))
		if n < 12 || n > maxFrame {
			return
		}
		if _, err := io.ReadFull(r, buf[lengthBytes:lengthBytes+n]); err != nil {
			return
		}
		w.forward(p, buf[:lengthBytes+n])
	}
}

func (w *Wire) forward(from *port, packet []byte) {
	frame := packet[lengthBytes:]
	dst, src := station(frame[0:6]), station(frame[6:12])
	w.mu.Lock()
	w.stations[src] = from
	w.carried[[2]station{src, dst}] += uint64(len(frame))
	to := w.stations[dst]
	var all []*port
	if to == nil {
		for p := range w.ports {
			if p != from {
				all = append(all, p)
			}
		}
	}
	w.mu.Unlock()
	if to != nil && to != from {
		to.send(packet)
	}
	for _, p := range all {
		p.send(packet)
	}
}

// send blocks while the guest's QEMU is busy. A port that has ended loses the frame, as a wire does.
func (p *port) send(packet []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn.Write(packet)
}

func (w *Wire) detach(p *port) {
	p.conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ports, p)
	for mac, at := range w.stations {
		if at == p {
			delete(w.stations, mac)
		}
	}
}
