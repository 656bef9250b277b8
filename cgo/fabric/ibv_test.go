package fabric

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/cgo/fabric/fabrictest"
)

// ibvEndpoint lays out an endpoint as ibv.h says.
func ibvEndpoint(qpn, psn uint32, mtu, link uint8, lid uint16, gid [16]byte) []byte {
	b := []byte{'R', 'w', 'i', 'b', 1, link, mtu, 0}
	b = binary.LittleEndian.AppendUint32(b, qpn)
	b = binary.LittleEndian.AppendUint32(b, psn)
	b = binary.LittleEndian.AppendUint32(b, uint32(lid))
	return append(b, gid[:]...)
}

func TestIBVEndpointsThatAreSaneAreTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		link, lid := rapid.Uint8Range(1, 3).Draw(t, "link"), uint16(0)
		gid := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		if link == 1 {
			lid = rapid.Uint16Range(1, 0xffff).Draw(t, "lid")
		} else {
			gid[0] |= 1
		}
		b := ibvEndpoint(rapid.Uint32Range(1, 1<<24-1).Draw(t, "qpn"), rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn"),
			rapid.Uint8Range(1, 5).Draw(t, "mtu"), link, lid, gid)
		if err := fabrictest.CheckIBVEndpoint(b); err != nil {
			t.Fatalf("%x is refused: %v", b, err)
		}
	})
}

func TestIBVEndpointsThatAreNotSaneAreRefused(t *testing.T) {
	good := ibvEndpoint(17, 0xabcdef, 3, 3, 0, [16]byte{0xfe, 0x80, 15: 1})
	for _, c := range []struct {
		name string
		edit func([]byte) []byte
		want string
	}{
		{"empty", func([]byte) []byte { return nil }, "0 bytes"},
		{"too long", func(b []byte) []byte { return append(b, 0) }, "37 bytes"},
		{"another provider's", func(b []byte) []byte { b[3] = 'x'; return b }, "same provider"},
		{"another version", func(b []byte) []byte { b[4] = 2; return b }, "version 2"},
		{"no such link", func(b []byte) []byte { b[5] = 4; return b }, "damaged"},
		{"InfiniBand without a LID", func(b []byte) []byte { b[5] = 1; return b }, "damaged"},
		{"RoCE with a LID", func(b []byte) []byte { b[16] = 1; return b }, "damaged"},
		{"RoCE without a GID", func(b []byte) []byte { clear(b[20:]); return b }, "damaged"},
		{"no such MTU", func(b []byte) []byte { b[6] = 6; return b }, "damaged"},
		{"queue pair 0", func(b []byte) []byte { clear(b[8:12]); return b }, "damaged"},
		{"a queue pair number of 25 bits", func(b []byte) []byte { b[11] = 1; return b }, "damaged"},
		{"a packet sequence number of 25 bits", func(b []byte) []byte { b[15] = 1; return b }, "damaged"},
		{"a reserved byte in use", func(b []byte) []byte { b[7] = 1; return b }, "damaged"},
		{"another reserved byte in use", func(b []byte) []byte { b[19] = 1; return b }, "damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := fabrictest.CheckIBVEndpoint(c.edit(slices.Clone(good))); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzIBVEndpoint(f *testing.F) {
	f.Add(ibvEndpoint(17, 5, 5, 3, 0, [16]byte{10: 0xff, 11: 0xff, 15: 1}))
	f.Add(ibvEndpoint(1, 0, 1, 1, 9, [16]byte{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		want := len(b) == 36 && string(b[:5]) == "Rwib\x01" && b[6] >= 1 && b[6] <= 5 && b[7] == 0 && b[11] == 0 && b[15] == 0 &&
			!bytes.Equal(b[8:12], make([]byte, 4)) && b[18] == 0 && b[19] == 0
		if want && b[5] == 1 {
			want = b[16] != 0 || b[17] != 0
		} else if want {
			want = (b[5] == 2 || b[5] == 3) && b[16] == 0 && b[17] == 0 && !bytes.Equal(b[20:], make([]byte, 16))
		}
		if err := fabrictest.CheckIBVEndpoint(b); (err == nil) != want {
			t.Errorf("%x is an endpoint: %v, but %v", b, want, err)
		}
	})
}

func TestIBVTimesBecomeCodes(t *testing.T) {
	for _, c := range []struct {
		ms    uint32
		retry uint8
		want  uint8
	}{
		{0, 7, 1}, {1, 0, 8}, {200, 6, 13}, {1000, 6, 16}, {1000, 0, 18}, {60000, 6, 21}, {4294967295, 0, 31},
	} {
		if got := fabrictest.IBVAckTimeout(c.ms, c.retry); got != c.want {
			t.Errorf("ack timeout of %d ms with %d retries: code %d, want %d", c.ms, c.retry, got, c.want)
		}
	}
	for _, c := range []struct {
		ms      uint32
		retries uint8
		want    uint8
	}{
		{0, 6, 1}, {1, 6, 9}, {200, 6, 24}, {1000, 6, 29}, {2900, 6, 31}, {3000, 6, 0}, {1, 0, 0},
	} {
		if got := fabrictest.IBVRNRTimer(c.ms, c.retries); got != c.want {
			t.Errorf("RNR timer of %d ms with %d retries: code %d, want %d", c.ms, c.retries, got, c.want)
		}
	}
}
