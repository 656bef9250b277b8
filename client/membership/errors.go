package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"

	"connectrpc.com/connect"
)

// Errors of this package wrap one of these.
var (
	ErrAborted    = errors.New("job aborted")
	ErrServerLost = errors.New("aggregator lost")
	ErrTimeout    = errors.New("timed out")
	ErrClosed     = errors.New("worker closed")
	ErrRefused    = errors.New("refused by the aggregator")
)

// JobError is the failure of a job. It wraps [ErrAborted].
type JobError struct {
	Job  string
	Rank int // of the worker that caused it, or -1
	Text string
}

func (e *JobError) Error() string { return fmt.Sprintf("job %q failed: %s", e.Job, e.Text) }

// Is matches [ErrAborted].
func (e *JobError) Is(target error) bool { return target == ErrAborted }

// partError is the error of one of several aggregators.
type partError struct {
	server string
	err    error
}

func (e *partError) Error() string { return fmt.Sprintf("%s: %v", e.server, e.err) }

func (e *partError) Unwrap() error { return e.err }

// classify returns the error of a call as one of this package's.
func classify(err error) error {
	var c *connect.Error
	if !errors.As(err, &c) {
		return fmt.Errorf("%w: %w", ErrServerLost, err)
	}
	text := c.Message()
	switch c.Code() {
	case connect.CodeDeadlineExceeded:
		return fmt.Errorf("%w: %s", ErrTimeout, text)
	case connect.CodeCanceled:
		// A connection that breaks while the request is written is reported as canceled, too.
		if !connect.IsWireError(err) && !errors.Is(c.Unwrap(), context.Canceled) {
			return fmt.Errorf("%w: %s", ErrServerLost, text)
		}
		if c.Unwrap() == context.Canceled {
			return context.Canceled
		}
		return fmt.Errorf("%w: %s", context.Canceled, text)
	case connect.CodeUnavailable:
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			return &explained{fmt.Sprintf("cannot reach the aggregator: %v", dial), []error{ErrServerLost, dial}}
		}
		return fmt.Errorf("%w: %s", ErrServerLost, text)
	case connect.CodeAborted:
		return fmt.Errorf("%w: %s", ErrAborted, text)
	default:
		return &explained{fmt.Sprintf("%v: %s", ErrRefused, text), []error{ErrRefused, c}}
	}
}

// Classify returns the error of the first call to an aggregator, which may fail because of its URL, as one of this package's.
func (a *Access) Classify(err error) error {
	lost := classify(err)
	remedy, dial := "", new(net.OpError)
	switch {
	case errors.Is(lost, ErrTimeout) && !connect.IsWireError(err):
		remedy = ": is this its address, is its host up, and does a firewall let its port through?"
	case !errors.Is(lost, ErrServerLost) || connect.IsWireError(err): // it answered
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = ": is it running (rackweave serve), and is this its address?"
	case errors.As(err, &dial) && dial.Op == "dial":
	case errors.As(err, new(*tls.CertificateVerificationError)):
		remedy = ": give as its CA the sha256:FINGERPRINT that rackweave serve printed, or a file with" +
			" its certificate's issuer, and a name or address that the certificate is for"
	case errors.Is(err, http.ErrSchemeMismatch):
		remedy = ": it serves without TLS: use http://"
	case strings.HasPrefix(a.Server, "http:"):
		remedy = ": its log says why, if it has ended or takes no connections; if it serves TLS, use https://"
	}
	return fmt.Errorf("%w%s", lost, remedy)
}

// withCause adds the cause of a canceled context to the error of a call under it.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled || !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// explained is an error with a text of its own, which wraps others.
type explained struct {
	text string
	errs []error
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() []error { return e.errs }
