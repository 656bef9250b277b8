package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
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

// playing is an aggregator of a version before codecs.
type playing struct {
	apiconnect.UnimplementedJobServiceHandler
	heartbeat uint32 // ms
	silent    bool
	left      chan string
}

func (o *playing) Join(context.Context, *api.JoinRequest) (*api.JoinResponse, error) {
	return &api.JoinResponse{
		Record: make([]float32, chunk.RecordValues), Lanes: []*api.Lane{{}}, Window: 2, HeartbeatMs: o.heartbeat,
	}, nil
}

func (o *playing) Watch(ctx context.Context, _ *api.WatchRequest, s *connect.ServerStream[api.WatchResponse]) error {
	if !o.silent {
		if err := s.Send(&api.WatchResponse{}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func (o *playing) Leave(_ context.Context, r *api.LeaveRequest) (*api.LeaveResponse, error) {
	o.left <- r.Failure
	return &api.LeaveResponse{}, nil
}

// join joins the aggregator, with codecs, and returns the error.
func (o *playing) join(t *testing.T) error {
	o.left = make(chan string, 1)
	_, handler := apiconnect.NewJobServiceHandler(o)
	s := httptest.NewUnstartedServer(handler)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	cfg := Config{Access: Access{Server: s.URL, Timeout: 10 * time.Second}}
	_, err := Join(t.Context(), cfg, &api.JoinRequest{Job: "j", Workers: 1, Compress: "int4", Provider: "tcp"})
	return err
}

func TestAnAggregatorThatKnowsNoCodecsIsNotJoinedWithAny(t *testing.T) {
	o := &playing{heartbeat: 1000}
	if err := o.join(t); err == nil || !strings.Contains(err.Error(), "without codecs, and would leave out int4: update it") {
		t.Fatalf("%v", err)
	}
	if why := <-o.left; !strings.Contains(why, "int4") {
		t.Errorf("it left with %q", why)
	}
}

func TestAnAggregatorThatSendsNoFirstHeartbeatIsLost(t *testing.T) {
	o := &playing{heartbeat: 5, silent: true}
	if err := o.join(t); err == nil || !strings.Contains(err.Error(), "no heartbeat for 50ms") {
		t.Errorf("%v", err)
	}
}
