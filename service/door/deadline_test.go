package door

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// slowServer answers after the body and a wait that is longer than a body may take.
func slowServer(t *testing.T) *httptest.Server {
	const limit = 100 * time.Millisecond
	s := httptest.NewUnstartedServer(InTime(limit, time.Minute, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusRequestTimeout)
			return
		}
		select {
		case <-time.After(3 * limit):
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "answered, ", r.Context().Err())
	})))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func TestABodyThatDoesNotComeEndsItsConnection(t *testing.T) {
	c, err := net.Dial("tcp", slowServer(t).Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
}

func TestACallMayWaitLongerThanItsBodyTook(t *testing.T) {
	s := slowServer(t)
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, body := range []io.Reader{nil, strings.NewReader("{}")} {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
			transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
			resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Post(s.URL, "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			transport.CloseIdleConnections()
			if want := "answered, <nil>"; err != nil || resp.Proto != protocol || resp.StatusCode != 200 || string(text) != want {
				t.Errorf("%s: %s %q, %v, want %q", resp.Proto, resp.Status, text, err, want)
			}
		}
	}
}
