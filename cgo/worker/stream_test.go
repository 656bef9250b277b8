package worker_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rackweave/rackweave/cgo/worker/streamtest"
)

// numbers formats consecutive message numbers.
func numbers(n []uint32, none string) string {
	for i := range n {
		if n[i] != n[0]+uint32(i) {
			return fmt.Sprintf("out of order: %v", n)
		}
	}
	if len(n) == 0 {
		return none
	}
	return fmt.Sprintf("%d..%d", n[0], n[len(n)-1])
}

// The scripts are those that drive the aggregator's end of a stream.
func TestStreamFollowsTheAggregatorsSpecification(t *testing.T) {
	files, err := filepath.Glob("../../aggregate/session/testdata/stream/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		var s *streamtest.Stream
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			n := 0
			d.MaybeScanArgs(t, "n", &n)
			out := ""
			switch d.Cmd {
			case "new":
				d.ScanArgs(t, "depth", &n)
				s = streamtest.New(n)
				t.Cleanup(s.Close)
			case "put":
				for range n {
					if !s.Put() {
						t.Fatalf("%s: no room in the ring", d.Pos)
					}
				}
			case "post":
				out = "posted " + numbers(s.Post(), "nothing") + "\n"
			case "sent":
				s.Sent(n)
			case "receive":
				s.Receive(n)
			case "break":
				s.Break()
			case "resume":
				d.ScanArgs(t, "received", &n)
				if out = "refused\n"; s.Resume(uint64(n)) {
					out = "posted " + numbers(s.Post(), "nothing") + "\n"
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			st := s.State()
			return fmt.Sprintf("%sheld %s unposted %d done %d reached %d received %d\n", out, numbers(st.Held, "none"), st.Unposted, st.Done,
				st.Reached, st.Received)
		})
	}
}

func TestFullRingTakesNoMessage(t *testing.T) {
	s := streamtest.New(2)
	defer s.Close()
	if first, second := s.Put(), s.Put(); !first || !second || s.Put() {
		t.Fatal("a ring of two holds other than two messages")
	}
	s.Post()
	s.Sent(1)
	if third, fourth := s.Put(), s.Put(); !third || fourth {
		t.Fatal("an entry that became free is not used once")
	}
}
