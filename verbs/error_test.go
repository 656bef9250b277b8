package verbs

import (
	"syscall"
	"testing"
)

func TestErrorNamesItsCallOnce(t *testing.T) {
	for _, c := range []struct {
		err  Error
		want string
	}{
		{Error{Op: "poll", Errno: syscall.EIO}, "poll: input/output error"},
		{Error{Op: "connect", Errno: syscall.EIO, Text: "the peer is gone"}, "connect: the peer is gone"},
		{Error{Op: "connect", Errno: syscall.EIO, Text: "connect: the peer is gone"}, "connect: the peer is gone"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
