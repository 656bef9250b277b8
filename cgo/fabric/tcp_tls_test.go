package fabric_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rackweave/rackweave/cgo/fabric"
)

// wire is what the active side sends, as somebody between sees it, who may change a byte of it.
type wire struct {
	mu   sync.Mutex
	sent []byte
	flip int // 0: none
	to   net.Conn
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.flip - len(w.sent); w.flip > 0 && at >= 0 && at < len(p) {
		p = bytes.Clone(p)
		p[at] ^= 4
	}
	w.sent = append(w.sent, p...)
	return w.to.Write(p)
}

func (w *wire) seen() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.sent)
}

// tap makes two connected queue pairs with a wire between them.
func tap(t *testing.T, w *wire, options string) *rig {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	behind := free.Addr().String()
	const size = 1 << 20
	a := newNode(t, "", 64) // while the port that b will have is taken
	free.Close()
	r := &rig{a: a, b: newNode(t, fmt.Sprint("listen=", behind, ",advertise=", l.Addr(), options), 64),
		source: memory(t, size), target: memory(t, size)}
	r.src, r.dst = r.a.register(r.source, accessAll), r.b.register(r.target, accessAll)
	r.qa, r.qb = r.a.newQP(8, 8), r.b.newQP(8, 8)
	go func() {
		a, err := l.Accept()
		if err != nil {
			return
		}
		defer a.Close()
		if w.to, err = net.Dial("tcp", behind); err != nil {
			return
		}
		go func() {
			io.Copy(w, a)
			w.to.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(a, w.to)
		w.to.Close()
	}()
	fillRandom(r.source, 9)
	connect(t, r.qa, r.qb, testAttr)
	return r
}

const helloBytes = 40

// hasTLS reports whether the kernel can encrypt, and if not, why.
func hasTLS(t *testing.T) (why string, has bool) {
	t.Helper()
	dev, err := fabric.Open("tcp", "", "encrypt=yes")
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return err.Error(), false
	}
	check(t, err)
	dev.Close()
	return "", true
}

// Without the kernel's TLS an encrypting device is refused with the remedy, and so is a peer that wants encryption.
func TestTCPWithoutTheKernelsTLSDoesNotEncrypt(t *testing.T) {
	why, has := hasTLS(t)
	if has {
		t.Skip("this kernel has TLS")
	}
	for _, want := range []string{"this kernel has no TLS", "modprobe tls", "WireGuard"} {
		if !strings.Contains(why, want) {
			t.Errorf("error %q does not mention %q", why, want)
		}
	}
	n := newNode(t, "", 8)
	peer := endpoint(t, n.newQP(1, 1))
	binary.LittleEndian.PutUint16(peer[14:], 1) // as the endpoint of a device that encrypts
	if err := n.newQP(1, 1).Connect(peer, testAttr); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("connecting to a peer that encrypts: %v", err)
	}
}

func TestTCPEncryptsWhatTheAggregatorsDeviceSaysItShould(t *testing.T) {
	if why, has := hasTLS(t); !has {
		t.Skip(why)
	}
	for _, encrypt := range []bool{false, true} {
		w := &wire{}
		options := ""
		if encrypt {
			options = ",encrypt=yes"
		}
		r := tap(t, w, options)
		check(t, r.qb.PostRecv(1, 2))
		post(t, r.qa, r.write(0, 100_000, 1), r.write(200_000, 10, 2))
		pollBoth(t, r.a, r.b, 2, 2)
		if !bytes.Equal(r.source[:100_000], r.target[:100_000]) || !bytes.Equal(r.source[200_000:200_010], r.target[200_000:200_010]) {
			t.Errorf("encrypted %v: other bytes arrived", encrypt)
		}
		stream := w.seen()[helloBytes:]
		if bytes.Contains(stream, r.source[50_000:50_032]) == encrypt {
			t.Errorf("encrypted %v: whether the payload is on the wire is the reverse", encrypt)
		}
		if !encrypt {
			continue
		}
		plain := openRecords(t, stream, endpoint(t, r.qa)[32:], endpoint(t, r.qb)[32:])
		if !bytes.Contains(plain, r.source[50_000:60_000]) {
			t.Error("TLS 1.3's records, opened with the connection's key, have other bytes")
		}
	}
}

// openRecords opens the records of the active side as RFC 8446 says.
func openRecords(t *testing.T, stream, active, passive []byte) (plain []byte) {
	t.Helper()
	m := hmac.New(sha256.New, append(bytes.Clone(active), passive...))
	m.Write([]byte("rackweave tcp, from the active side"))
	key := m.Sum(nil)
	block, err := aes.NewCipher(key[:16])
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(0); len(stream) > 0; seq++ {
		n := 5 + int(binary.BigEndian.Uint16(stream[3:]))
		nonce := bytes.Clone(key[16:28])
		binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^seq)
		inner, err := gcm.Open(nil, nonce, stream[5:n], stream[:5])
		if err != nil || inner[len(inner)-1] != 23 {
			t.Fatalf("record %d of %d bytes: %v", seq, n, err)
		}
		plain, stream = append(plain, inner[:len(inner)-1]...), stream[n:]
	}
	return plain
}

func TestTCPAChangedByteEndsAnEncryptedConnection(t *testing.T) {
	if why, has := hasTLS(t); !has {
		t.Skip(why)
	}
	// The first byte of a record is always the same, and the kernel does not look at it.
	for _, flip := range []int{helloBytes + 3, helloBytes + 5, helloBytes + 20_000} {
		w := &wire{flip: flip}
		r := tap(t, w, ",encrypt=yes")
		check(t, r.qb.PostRecv(1, 1))
		post(t, r.qa, r.write(0, 100_000, 1))
		_, got := pollBoth(t, r.a, r.b, 0, 1)
		wc := got[0]
		if wc.Status == fabric.WCSuccess {
			t.Errorf("byte %d changed: the message arrived", flip)
		}
		if i := flip - helloBytes; i > 1<<14 && !allZero(r.target[i:]) {
			t.Errorf("byte %d changed: what stands behind it was placed", flip)
		}
	}
}
