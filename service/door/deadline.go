package door

import (
	"io"
	"net/http"
	"time"
)

// InTime fails a request if its body takes longer than body to arrive, or if a part of its answer waits longer than answer to be
// read. The server's own timeouts would also end streams and calls that wait.
func InTime(body, answer time.Duration, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if r.ContentLength != 0 && c.SetReadDeadline(time.Now().Add(body)) == nil {
			r.Body = &timedBody{r.Body, c}
		}
		h.ServeHTTP(&timedAnswer{w, c, answer}, r)
	})
}

// timedBody is a body with a read deadline. The deadline ends with the body: after it the server reads to see whether the client is
// still there.
type timedBody struct {
	io.ReadCloser
	c *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.c.SetReadDeadline(time.Time{})
	}
	return n, err
}

// timedAnswer moves the write deadline ahead of each write.
type timedAnswer struct {
	http.ResponseWriter
	c      *http.ResponseController
	within time.Duration
}

func (a *timedAnswer) WriteHeader(code int) {
	a.c.SetWriteDeadline(time.Now().Add(a.within))
	a.ResponseWriter.WriteHeader(code)
}

func (a *timedAnswer) Write(p []byte) (int, error) {
	a.c.SetWriteDeadline(time.Now().Add(a.within))
	return a.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which streams need.
func (a *timedAnswer) Flush() {
	a.c.SetWriteDeadline(time.Now().Add(a.within))
	a.c.Flush()
}

// Unwrap is for http.ResponseController.
func (a *timedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
