package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/cgo/fabric"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/client/lanes"
)

// Errors of this package wrap one of these.
var (
	// ErrAborted means that the job failed. A [*JobError] says because of whom.
	ErrAborted = errors.New("job aborted")
	// ErrServerLost means that the aggregator cannot be reached, any more or at all.
	ErrServerLost = errors.New("aggregator lost")
	// ErrTimeout means that a deadline passed.
	ErrTimeout = errors.New("timed out")
	// ErrForked means that this process is a forked child of the one that joined.
	ErrForked = errors.New("used in a forked child")
	// ErrClosed means that the worker was closed.
	ErrClosed = errors.New("worker closed")
	// ErrRefused means that the aggregator turned the request down. errors.As finds its code, in a *connect.Error.
	ErrRefused = errors.New("refused by the aggregator")
	// ErrBusy means that the tensor has an operation under way.
	ErrBusy = errors.New("busy")
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

// fail makes err the worker's failure, unless it has one, and ends all operations. Nothing starts in the background afterwards.
func (w *Worker) fail(err error) { w.failAnd(func() {}, err) }

// giveUp fails the worker for a reason of its own and tells the aggregator at once, so that the others need not wait for Close.
func (w *Worker) giveUp(err error) {
	w.failAnd(func() { w.telling.Go(func() { w.tell(err) }) }, err)
}

// failAnd is fail that calls also, before anyone sees the failure, if err becomes it.
func (w *Worker) failAnd(also func(), err error) {
	w.failOnce.Do(func() {
		w.failure = err
		also()
		close(w.failed)
		w.handleMu.Lock()
		defer w.handleMu.Unlock()
		if w.c != nil {
			cworker.Abort(w.c, err.Error())
		}
	})
}

// Err returns the worker's failure, or nil while it has none.
func (w *Worker) Err() error {
	select {
	case <-w.failed:
		return w.failure
	default:
		return nil
	}
}

// Failed returns a channel that is closed when the worker has failed.
func (w *Worker) Failed() <-chan struct{} { return w.failed }

// reasonWait is how long a failure of the data path waits for the control plane to say what caused it.
const reasonWait = 500 * time.Millisecond

// onThread makes a call of the C worker and returns, with a negative result, the text by which the thread explains it.
func onThread(f func() int) (rc int, text string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if rc = f(); rc < 0 {
		text = fabric.LastError()
	}
	return rc, text
}

// dataError turns a result of the C worker into an error. The text explains what is not the worker's failure.
func (w *Worker) dataError(what string, rc int, text string) error {
	switch rc {
	case cworker.ErrForked:
		return fmt.Errorf("%s: %w: join the job anew in the child", what, ErrForked)
	case -int(syscall.EBUSY):
		return fmt.Errorf("%s: %w: %s", what, ErrBusy, text)
	case cworker.ErrAborted, cworker.ErrTransport, cworker.ErrProtocol:
		select {
		case <-w.failed:
		case <-time.After(reasonWait):
			_, text := cworker.Failure(w.c)
			err := fmt.Errorf("%w: %s", ErrServerLost, text)
			if rc == cworker.ErrAborted {
				w.fail(err)
			} else {
				w.giveUp(err) // calls may still reach the aggregator
			}
		}
	case -int(syscall.ETIMEDOUT):
		_, text := cworker.Failure(w.c)
		w.giveUp(fmt.Errorf("%w: %s%s", ErrTimeout, text, w.whoIsAwaited()))
	default:
		return fmt.Errorf("%s: %s (%w)", what, text, syscall.Errno(-rc))
	}
	return fmt.Errorf("%s: %w", what, w.Err())
}

// sessionError turns an error of the C worker into one of this package's, and returns others as they are.
func (w *Worker) sessionError(err error) error {
	if c := (*lanes.WorkerError)(nil); errors.As(err, &c) {
		return w.dataError(c.Op, c.RC, c.Text)
	}
	return err
}

// callError turns the error of a call into one of this package's.
func (w *Worker) callError(what string, err error) error {
	if code := connect.CodeOf(err); code == connect.CodeAborted || code == connect.CodeUnauthenticated { // the session has ended
		select {
		case <-w.failed: // the watch stream says because of whom
		case <-time.After(reasonWait):
		}
	}
	if failed := w.Err(); failed != nil {
		return fmt.Errorf("%s: %w", what, failed)
	}
	if one := new(oneError); errors.As(err, &one) {
		what = fmt.Sprintf("%s at %s", what, one.server)
	}
	return fmt.Errorf("%s: %w", what, classify(err))
}

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
			return unreached{dial}
		}
		return fmt.Errorf("%w: %s", ErrServerLost, text)
	case connect.CodeAborted:
		return fmt.Errorf("%w: %s", ErrAborted, text)
	default:
		return &refusal{c}
	}
}

// classifyFirst is classify for the first call to an aggregator, which may fail because of how the server was named.
func (c *Config) classifyFirst(err error) error {
	lost := classify(err)
	remedy, dial := "", new(net.OpError)
	switch {
	case !errors.Is(lost, ErrServerLost) || connect.IsWireError(err): // it answered
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = ": is it running (rackweave serve), and is this its address?"
	case errors.As(err, &dial) && dial.Op == "dial":
	case errors.As(err, new(*tls.CertificateVerificationError)):
		remedy = ": give as its CA the sha256:FINGERPRINT that rackweave serve printed, or a file with" +
			" its certificate's issuer, and a name or address that the certificate is for"
	case errors.Is(err, http.ErrSchemeMismatch):
		remedy = ": it serves without TLS: use http://"
	case strings.HasPrefix(c.Server, "http:"):
		remedy = ": if it serves TLS, use https://"
	}
	return fmt.Errorf("%w%s", lost, remedy)
}

// becauseOf adds to the error of a call that its caller has given up why.
func becauseOf(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled || !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// unreached is an [ErrServerLost] of an aggregator that may never have been there.
type unreached struct{ err error }

func (u unreached) Error() string { return fmt.Sprintf("cannot reach the aggregator: %v", u.err) }

func (unreached) Is(target error) bool { return target == ErrServerLost }

func (u unreached) Unwrap() error { return u.err }

// refusal is an [ErrRefused].
type refusal struct{ err *connect.Error }

func (r *refusal) Error() string { return fmt.Sprintf("%v: %s", ErrRefused, r.err.Message()) }

func (r *refusal) Is(target error) bool { return target == ErrRefused }

func (r *refusal) Unwrap() error { return r.err }
