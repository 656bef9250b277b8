package api_test

import (
	"io"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
)

// The write of a request takes the error of a reset, and the read of the answer finds the end of the connection.
func TestACallWhoseWriteMeetsTheResetIsRepeated(t *testing.T) {
	calls := 0
	err := api.Contact(t.Context(), time.Minute, func(time.Duration) error {
		if calls++; calls == 1 {
			return connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF)
		}
		return nil
	})
	if err != nil || calls != 2 {
		t.Errorf("%d calls: %v", calls, err)
	}
}
