package door

import (
	"io"
	"sync"
	"time"
)

// What a connection may send below the calls that are counted, in bytes per second and at once. A connection in arrears is not
// read: its peer waits.
const (
	strangersRate, strangersBurst = 4 << 10, 8 << 10
	membersRate, membersBurst     = 2 << 20, 256 << 10 // of all connections of one
	dismissedBurst                = 128 << 10          // a window of a body may be under way when its sender stops being a member

	readCost     = 64      // of a read, beside its bytes: two are a frame without TLS
	strangerCall = 1 << 10 // what a stranger's call adds, which its address's rate bounds
	memberCall   = 512     // what a member's call takes
	answerShare  = 8       // one byte in so many of an answer is added, for what its reader says about windows
)

// meter bounds bytes.
type meter struct {
	rate, burst float64

	mu  sync.Mutex
	has float64 // less than 0: arrears
	at  time.Time
}

func newMeter(rate, burst, has float64) *meter {
	return &meter{rate: rate, burst: burst, has: has, at: time.Now()}
}

// add adds n bytes, or takes them if n is less than 0, and returns how many there are.
func (m *meter) add(n float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if more := m.rate*now.Sub(m.at).Seconds() + n; more < 0 || m.has < m.burst {
		m.has = min(m.has+more, m.burst)
	}
	m.at = now
	return m.has
}

// settle waits, if the connection is in arrears, until it has some of what it may send at once: by time, by what its calls add, or
// as a member's. It ends with the connection. Waking up for each frame would cost more than most frames do.
func (c *Conn) settle() {
	const shortest, longest = time.Millisecond, 100 * time.Millisecond
	least := 0.0
	for pause := shortest; ; pause = min(4*pause, longest) {
		m := c.meter.Load()
		if m.add(0) >= least {
			return
		}
		least = m.burst / 8
		select {
		case <-time.After(pause):
		case <-c.gone:
			return
		}
	}
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.meter.Load().add(float64(n) / answerShare)
	return n, err
}

// Body returns a body whose bytes are not metered, because its reader bounds them. Frames of a kilobyte and more cost nothing.
func (c *Conn) Body(b io.ReadCloser) io.ReadCloser {
	if c == nil {
		return b
	}
	return &body{b, c}
}

type body struct {
	io.ReadCloser
	c *Conn
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.c.meter.Load().add(float64(n) * 5 / 4)
	return n, err
}

// Close leaves the rest to the server, which reads some of it once it has answered.
func (b *body) Close() error { return nil }
