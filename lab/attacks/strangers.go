package attacks

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// call is a request that may be refused, or have its connection closed, at any time.
type call struct {
	path, content, encoding string
	header                  map[string]string
	body                    io.Reader
}

func (a *Aggregator) post(ctx context.Context, c call) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL+c.path, c.body)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", c.content)
	if c.encoding != "" {
		r.Header.Set("Content-Encoding", c.encoding)
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	answer, err := stranger().Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return answer.StatusCode, string(body), err
}

// emptyTensors is a Register of n empty tensors.
func emptyTensors(n int) []byte { return bytes.Repeat([]byte{0x12, 0}, n) }

func squeezed(r io.Reader) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.Copy(w, r)
	w.Close()
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

var manyTensors = sync.OnceValue(func() []byte { return squeezed(bytes.NewReader(emptyTensors(30 << 20))) })

// RegisterAsNobody sends a body of empty tensors, packed, without a session.
func RegisterAsNobody(ctx context.Context, a *Aggregator) error {
	body := manyTensors()
	for range 8 {
		status, text, err := a.post(ctx, call{path: apiconnect.JobServiceRegisterProcedure, content: "application/proto",
			encoding: "gzip", body: bytes.NewReader(body)})
		if err == nil && status != http.StatusUnauthorized {
			return fmt.Errorf("the answer is %d %s", status, text)
		}
	}
	return nil
}

// InflateWithoutEnd sends a small body that inflates to gigabytes, to a call that strangers may make.
func InflateWithoutEnd(ctx context.Context, a *Aggregator) error {
	body := squeezed(io.LimitReader(zeros{}, 15<<20)) // as much as a stranger may send
	for _, content := range []string{"application/proto", "application/json"} {
		status, text, err := a.post(ctx, call{path: apiconnect.JobServiceJoinProcedure, content: content, encoding: "gzip",
			body: bytes.NewReader(body)})
		if err == nil && status == http.StatusOK {
			return fmt.Errorf("the answer is %d %s", status, text)
		}
	}
	return nil
}

// LargeBodies sends bodies that are larger than a stranger's may be, whose length is told or not.
func LargeBodies(ctx context.Context, a *Aggregator) error {
	for _, body := range []io.Reader{bytes.NewReader(make([]byte, 32<<20)), io.LimitReader(zeros{}, 256<<20)} {
		status, text, err := a.post(ctx, call{path: apiconnect.JobServiceJoinProcedure, content: "application/json", body: body})
		if err == nil && status == http.StatusOK {
			return fmt.Errorf("the answer is %d %s", status, text)
		}
	}
	return nil
}

// EndlessProfile posts without end to a handler that reads all of a body.
func EndlessProfile(ctx context.Context, a *Aggregator) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second/2)
	defer cancel()
	status, _, err := a.post(ctx, call{path: "/debug/pprof/symbol", content: "text/plain", body: zeros{}})
	if err == nil && status == http.StatusOK {
		return errors.New("a stranger's profile was answered")
	}
	return nil
}

// AdminCalls tries what only the admin may do.
func AdminCalls(ctx context.Context, a *Aggregator) error {
	for _, path := range []string{apiconnect.JobServiceDrainProcedure, "/debug/pprof/profile?seconds=1", "/debug/pprof/heap"} {
		for _, token := range []string{"", "admin", "victim"} {
			status, text, err := a.post(ctx, call{path: path, content: "application/json", body: strings.NewReader("{}"),
				header: map[string]string{"Authorization": "Bearer " + token}})
			if err == nil && status != http.StatusForbidden {
				return fmt.Errorf("%s: the answer is %d %s", path, status, text)
			}
		}
	}
	status, text, err := a.post(ctx, call{path: apiconnect.JobServiceStatusProcedure, content: "application/json",
		body: strings.NewReader("{}")})
	if err == nil && (status != http.StatusOK || strings.Contains(text, "victim")) {
		return fmt.Errorf("a stranger's status is %d %s", status, text)
	}
	return nil
}

// DeepBodies sends bodies that nest as deep as they can.
func DeepBodies(ctx context.Context, a *Aggregator) error {
	for _, unit := range []string{`{"hyper":`, `[`, `{"x":[`} {
		status, text, err := a.post(ctx, call{path: apiconnect.JobServiceJoinProcedure, content: "application/json",
			body: strings.NewReader(strings.Repeat(unit, 15<<10/len(unit)))})
		if err == nil && status == http.StatusOK {
			return fmt.Errorf("the answer is %d %s", status, text)
		}
	}
	return nil
}

// ManyConnections opens connections and leaves them as they are: without a word, or within a request's head.
func ManyConnections(ctx context.Context, a *Aggregator) error {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range 3000 {
		c, err := dialer.DialContext(ctx, "tcp", a.Addr())
		if err != nil {
			break // refused for good reason
		}
		open = append(open, c)
		if i%2 == 0 {
			fmt.Fprint(c, "POST /rackweave.v1.JobService/Join HTTP/1.1\r\nHost: x\r\nX: ")
		}
	}
	_, err := a.Metrics(ctx)
	return err
}

// ClosedWindows asks for the metrics over HTTP/2 again and again, and takes no byte of any answer.
func ClosedWindows(ctx context.Context, a *Aggregator) error {
	for range 4 {
		c, err := dialer.DialContext(ctx, "tcp", a.Addr())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := closedWindow(c); err != nil {
			continue // closed by the aggregator, as it may
		}
	}
	_, err := a.Metrics(ctx)
	return err
}

func closedWindow(c net.Conn) error {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	f := http2.NewFramer(c, c)
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for i := range 100 {
		head.Reset()
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/metrics"}, {":authority", "x"}} {
			if err := e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				return err
			}
		}
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head.Bytes(), EndStream: true,
			EndHeaders: true})
		if err != nil {
			return err
		}
	}
	return nil
}

// Garbage sends random bytes, alone and behind beginnings of requests.
func Garbage(ctx context.Context, a *Aggregator) error {
	b := make([]byte, 4096)
	for i := range 60 {
		c, err := dialer.DialContext(ctx, "tcp", a.Addr())
		if err != nil {
			break // its address is kept out
		}
		rand.Read(b)
		io.WriteString(c, []string{"", http2.ClientPreface, "POST /rackweave.v1.JobService/Join HTTP/1.1\r\nHost: x\r\n\r\n"}[i%3])
		c.Write(b)
		c.Close()
	}
	return nil
}
