package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"testing"

	"connectrpc.com/connect"
)

func TestCallErrorsWrapWhatTheyMean(t *testing.T) {
	broken := &url.Error{Op: "Post", URL: "http://host", Err: &net.OpError{Op: "write", Err: syscall.EPIPE}}
	unreachable := &url.Error{Op: "Post", URL: "http://host", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	for _, c := range []struct {
		err  error
		want error
	}{
		{connect.NewError(connect.CodeCanceled, broken), ErrServerLost},
		{connect.NewError(connect.CodeCanceled, fmt.Errorf("post: %w", context.Canceled)), context.Canceled},
		{connect.NewWireError(connect.CodeCanceled, errors.New("the call was given up")), context.Canceled},
		{connect.NewError(connect.CodeUnavailable, errors.New("refused")), ErrServerLost},
		{connect.NewError(connect.CodeUnavailable, unreachable), ErrServerLost},
		{connect.NewError(connect.CodeDeadlineExceeded, errors.New("late")), ErrTimeout},
		{connect.NewError(connect.CodeAborted, errors.New("job failed")), ErrAborted},
		{connect.NewError(connect.CodePermissionDenied, errors.New("wrong token")), ErrRefused},
		{errors.New("no connection"), ErrServerLost},
	} {
		if got := classify(c.err); !errors.Is(got, c.want) {
			t.Errorf("%v is %v, want it to wrap %q", c.err, got, c.want)
		}
	}
}
