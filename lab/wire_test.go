package lab

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

// plug is a test's end of a wire, framed as QEMU frames.
type plug struct {
	t    *testing.T
	mac  byte
	conn net.Conn
	r    *bufio.Reader
}

func plugIn(t *testing.T, w *Wire, mac byte) *plug {
	q := &qemu{}
	ours, _, err := q.socket()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := net.FileConn(q.files[0])
	if err != nil {
		t.Fatal(err)
	}
	q.closeChildEnds()
	w.attach(theirs)
	t.Cleanup(func() { ours.Close() })
	return &plug{t, mac, ours, bufio.NewReader(ours)}
}

const broadcast = 0xff

func (s *plug) send(to byte, payload string) {
	s.t.Helper()
	frame := append(bytes.Repeat([]byte{to}, 6), bytes.Repeat([]byte{s.mac}, 6)...)
	frame = append(frame, payload...)
	if _, err := s.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *plug) want(payload string) {
	s.t.Helper()
	s.conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	var n uint32
	if err := binary.Read(s.r, binary.BigEndian, &n); err != nil {
		s.t.Fatal(err)
	}
	frame := make([]byte, n)
	if _, err := io.ReadFull(s.r, frame); err != nil {
		s.t.Fatal(err)
	}
	if got := string(frame[12:]); got != payload {
		s.t.Errorf("station %d got %q, want %q", s.mac, got, payload)
	}
}

func TestWireLearnsWhereStationsAre(t *testing.T) {
	w := NewWire()
	a, b, c := plugIn(t, w, 1), plugIn(t, w, 2), plugIn(t, w, 3)

	a.send(broadcast, "who is there")
	b.want("who is there")
	c.want("who is there")
	b.send(1, "b is")
	a.want("b is")
	a.send(2, "only for b")
	b.want("only for b")
	b.send(3, "flooded: c has not spoken yet")
	a.want("flooded: c has not spoken yet")
	c.want("flooded: c has not spoken yet") // and has not seen what was only for b
}

func TestWireCountsWhatStationsSendEachOther(t *testing.T) {
	w := NewWire()
	a, b, c := plugIn(t, w, 1), plugIn(t, w, 2), plugIn(t, w, 3)
	address := func(p *plug) net.HardwareAddr { return bytes.Repeat([]byte{p.mac}, 6) }
	for range 2 {
		a.send(2, "forward")
		b.want("forward")
		c.want("forward") // flooded: b has not spoken yet
	}
	b.send(1, "back")
	a.want("back")
	a.send(3, "aside")
	c.want("aside")
	const header = 12
	for _, tc := range []struct {
		from, to *plug
		want     uint64
	}{{a, b, 2 * (header + 7)}, {b, a, header + 4}, {a, c, header + 5}, {c, a, 0}} {
		if got := w.Carried(address(tc.from), address(tc.to)); got != tc.want {
			t.Errorf("%d has sent %d %d bytes, expected %d", tc.from.mac, tc.to.mac, got, tc.want)
		}
	}
}

func TestWireForgetsWhoIsUnplugged(t *testing.T) {
	w := NewWire()
	a, b := plugIn(t, w, 1), plugIn(t, w, 2)
	b.send(broadcast, "hello")
	a.want("hello")
	b.conn.Close()
	again := plugIn(t, w, 2)
	again.send(1, "moved")
	a.want("moved")
	a.send(2, "found")
	again.want("found")
}

func TestWireDropsAStationThatBreaksTheFraming(t *testing.T) {
	for name, length := range map[string]uint32{"too short": 11, "too long": maxFrame + 1} {
		t.Run(name, func(t *testing.T) {
			s := plugIn(t, NewWire(), 1)
			s.conn.Write(binary.BigEndian.AppendUint32(nil, length))
			s.conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
			if _, err := s.r.ReadByte(); err != io.EOF {
				t.Errorf("got %v, want %v", err, io.EOF)
			}
		})
	}
}
