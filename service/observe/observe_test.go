package observe

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
)

const timeout = 5 * time.Second

// sent sends some tensors of chunks with 32 KiB to a reader who takes a while for each message, and returns what the reader has of
// each tensor, and when the call ended. The last tensor lacks its first chunks, as that of an aggregator with part of a job.
func sent(t *testing.T, tensors int, take func(m *api.CaptureResponse) error, over chan struct{}) (all [][]byte, took time.Duration,
	err error) {
	const elems, missing = 8 << 10, 3
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	all = make([][]byte, tensors)
	chunks := func(yield func(chunk.Chunk, []byte) bool) {
		for k := range tensors {
			for i := range 100 {
				x := chunk.Chunk{Tensor: k, Offset: uint64(i * elems), Elems: elems - 7*(i/99)}
				if (k < tensors-1 || i >= missing) && !yield(x, bytes.Repeat([]byte{byte(k + i)}, 4*x.Elems)) {
					return
				}
			}
		}
	}
	began := time.Now()
	err = send(ctx, &job.Job{Name: "j", Over: over}, chunks, func(m *api.CaptureResponse) error {
		if len(m.Data) > mostData {
			t.Errorf("a message of %d bytes", len(m.Data))
		}
		if of := &all[m.Tensor]; len(m.Data) > 0 {
			if len(*of) == 0 && int(m.Tensor) == tensors-1 {
				*of = make([]byte, 4*elems*missing)
			}
			if 4*m.Offset != uint64(len(*of)) {
				t.Errorf("tensor %d: values from element %d on, expected from byte %d on", m.Tensor, m.Offset, len(*of))
			}
			*of = append(*of, m.Data...)
		}
		return take(m)
	})
	return all, time.Since(began), err
}

func TestACaptureIsSentWithRestsAndASlowReaderMeetsADeadline(t *testing.T) {
	gone := errors.New("gone")
	after := func(d time.Duration) func(*api.CaptureResponse) error {
		return func(*api.CaptureResponse) error { time.Sleep(d); return nil }
	}
	closed := make(chan struct{})
	close(closed)
	for _, tc := range []struct {
		name        string
		take        func(*api.CaptureResponse) error
		over        chan struct{}
		least, most time.Duration // in which the call ends
		code        connect.Code
		want        string // in the error
	}{
		{"a fast reader takes a twentieth of the time", after(time.Millisecond), nil, 20 * 36 * time.Millisecond, time.Second, 0, ""},
		{"rests are bounded", after(100 * time.Millisecond), nil, 37 * 100 * time.Millisecond, 7 * time.Second, 0, ""},
		{"a reader of more than the least rate has its time", after(140 * time.Millisecond), nil, timeout + 2*time.Second, 9 * time.Second, 0, ""},
		{"a slow reader", after(time.Second), nil, timeout, timeout + 3*time.Second, connect.CodeDeadlineExceeded,
			`capture of job "j": its reader took `},
		{"a reader that is gone", func(*api.CaptureResponse) error { return gone }, nil, 0, 0, connect.CodeUnknown, "gone"},
		{"a job that is over", after(time.Millisecond), closed, 0, 0, connect.CodeNotFound, `job "j" has ended`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, took, err := sent(t, 11, tc.take, tc.over)
				if tc.want == "" {
					for k, got := range all {
						if want := 4 * (100*8<<10 - 7); err == nil && len(got) != want {
							t.Errorf("tensor %d has %d bytes, want %d", k, len(got), want)
						}
					}
					if err != nil {
						t.Error(err)
					}
				} else if err == nil || connect.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want code %v and %q", err, tc.code, tc.want)
				}
				if took < tc.least || took > tc.most {
					t.Errorf("it took %v, want %v to %v", took, tc.least, tc.most)
				}
			})
		})
	}
}
