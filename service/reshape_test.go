package service

import (
	"bytes"
	"errors"
	"testing"
)

func TestRunsAreTheEpochsThatWereWritten(t *testing.T) {
	for _, epochs := range [][]uint8{
		nil, {7}, {0, 0, 0}, {1, 2, 3}, bytes.Repeat([]uint8{5, 5, 6}, 400), bytes.Repeat([]uint8{9}, 20_000),
	} {
		runs := runsOf(epochs)
		if got, err := epochsOf(runs, len(epochs)); err != nil || !bytes.Equal(got, epochs) {
			t.Errorf("%d epochs: read %d, %v", len(epochs), len(got), err)
		}
		if len(epochs) > 0 {
			if _, err := epochsOf(runs, len(epochs)-1); !errors.Is(err, errProtocolOfRacks) {
				t.Errorf("%d epochs, one more than there may be: %v", len(epochs), err)
			}
		}
	}
	for _, bad := range [][]byte{{3}, {0, 1}, {0x80}, {0x80, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}} {
		if got, err := epochsOf(bad, 1000); !errors.Is(err, errProtocolOfRacks) {
			t.Errorf("% x: read %v, %v", bad, got, err)
		}
	}
}
