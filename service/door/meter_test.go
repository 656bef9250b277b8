package door

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// metered returns a connection and what its peer writes to, whose answers nobody takes.
func metered(t *testing.T) (*Conn, net.Conn) {
	d := New(Default(), func(string) {})
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close(); there.Close() })
	return d.enter(here), there
}

func TestWhatAConnectionSendsBelowCallsIsMetered(t *testing.T) {
	const frame, length = 17, 10 * time.Second // a ping, in two reads
	for name, tc := range map[string]struct {
		called      func(*Conn) // every second
		least, most int         // frames in that time
	}{
		"a stranger's":                  {nil, 200, 400},
		"a stranger's that calls":       {func(c *Conn) { c.Count() }, 250, 500},
		"a member's":                    {func(c *Conn) { c.Promote("m") }, 50_000, 200_000},
		"a member's, that is dismissed": {func(c *Conn) { c.Promote("m"); c.d.Dismiss("m") }, 200, 25_000},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, peer := metered(t)
			go func() {
				for b := make([]byte, frame); ; {
					if _, err := peer.Write(b); err != nil {
						return
					}
				}
			}()
			frames := 0
			go func() {
				head, rest := make([]byte, 9), make([]byte, frame-9)
				for {
					if _, err := io.ReadFull(c, head); err != nil {
						return
					}
					if _, err := io.ReadFull(c, rest); err != nil {
						return
					}
					frames++
				}
			}()
			for range int(length / time.Second) {
				if tc.called != nil {
					tc.called(c)
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if frames < tc.least || frames > tc.most {
				t.Errorf("%s: %d frames in %v, want %d to %d", name, frames, length, tc.least, tc.most)
			}
			began := time.Now()
			c.Close()
			synctest.Wait()
			if took := time.Since(began); took > 0 {
				t.Errorf("%s: closed after %v", name, took)
			}
		})
	}
}

// Bodies come as fast as they are read, whoever sends them: their calls are bounded.
func TestBodiesAreNotMetered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := metered(t)
		const part, parts = 16 << 10, 1000
		go func() {
			for b := make([]byte, part); ; {
				if _, err := peer.Write(b); err != nil {
					return
				}
			}
		}()
		began := time.Now()
		b := c.Body(io.NopCloser(c))
		for range parts {
			for rest := make([]byte, part); len(rest) > 0; { // as segments come
				n, err := b.Read(rest[:min(1448, len(rest))])
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("%d MiB of a body waited for %v", part*parts>>20, took)
		}
		c.Close()
	})
}

func TestAConnectionInArrearsIsReadAgainWhenItsMemberIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := metered(t)
		go io.Copy(peer, neverEnds{})
		if _, err := io.ReadFull(c, make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.AfterFunc(10*time.Millisecond, func() { c.Promote("m") })
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it was read after %v", took)
		}
		c.Close()
	})
}

type neverEnds struct{}

func (neverEnds) Read(b []byte) (int, error) { return len(b), nil }
