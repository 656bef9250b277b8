package service

import (
	"io"
	"net/http"
	"time"
)

// bodyWithin fails requests whose body takes longer than d to arrive. The server's own read timeout would also end streams and
// calls that wait.
func bodyWithin(d time.Duration, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			c := http.NewResponseController(w)
			if c.SetReadDeadline(time.Now().Add(d)) == nil {
				r.Body = &timedBody{r.Body, c}
			}
		}
		h.ServeHTTP(w, r)
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
