// Package rpc has what the rooms of the control plane share: errors of calls, names and deadlines.
package rpc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"
)

// Limits of what is repeated in logs and answers of what others say.
const (
	MaxNameBytes = 64
	MaxTextBytes = 4096
)

// MessageCost is the memory for a decoded message beside its fields, roughly.
const MessageCost = 192

const (
	MaxWait     = time.Hour
	defaultWait = time.Minute
)

// ErrVersions is wrapped by errors of what aggregators of one version do not send each other.
var ErrVersions = errors.New("run one version of all aggregators")

// Refuse returns the error of a call that is refused.
func Refuse(code connect.Code, format string, args ...any) *connect.Error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

// Reason returns a refusal without its code, which is only for the caller.
func Reason(err error) error {
	if c := new(connect.Error); errors.As(err, &c) {
		return c.Unwrap()
	}
	return err
}

// namePattern matches the names that jobs, checkpoints and barriers may have. They become file names and labels.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckName refuses a name that a job, a checkpoint or a barrier may not have.
func CheckName(what, name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%s name %q: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first", what, name)
	}
	return nil
}

// Printable makes a text from anyone fit for logs, terminals and protobuf: it returns the first bytes, without control characters.
func Printable(s string, most int) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s[:min(len(s), most)])
}

// List joins names for a message.
func List(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// NewID returns a random name.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Equal compares secrets.
func Equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Bounded gives a call the deadline it asks for, within limits.
func Bounded(ctx context.Context, ms uint32) (context.Context, context.CancelFunc) {
	d := defaultWait
	if ms > 0 {
		d = min(time.Duration(ms)*time.Millisecond, MaxWait)
	}
	return context.WithTimeout(ctx, d)
}
