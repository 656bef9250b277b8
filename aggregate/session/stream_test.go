package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// The scripts drive this stream here, and the worker's in cgo/worker.
func TestStreamFollowsTheSpecification(t *testing.T) {
	files, err := filepath.Glob("testdata/stream/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		var s *numbered
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			n := 0
			d.MaybeScanArgs(t, "n", &n)
			out := ""
			switch d.Cmd {
			case "new":
				d.ScanArgs(t, "depth", &n)
				s = newNumbered(n)
			case "put":
				s.put(n)
			case "post":
				out = s.post() + "\n"
			case "sent":
				for range n {
					s.Delivered()
				}
			case "receive":
				s.Received += uint64(n)
			case "break":
				s.Break()
			case "resume":
				d.ScanArgs(t, "received", &n)
				out = s.resume(uint64(n)) + "\n"
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return out + s.String() + "\n"
		})
	}
}

// numbered is a stream whose messages carry their number.
type numbered struct {
	Stream
	next uint32
}

func newNumbered(depth int) *numbered { return &numbered{Stream: NewStream(depth)} }

func (s *numbered) put(n int) {
	for range n {
		s.Put(NoToken).Imm = s.next
		s.next++
	}
}

func (s *numbered) post() string {
	from, n := uint32(0), 0
	for wrs := s.Next(); len(wrs) > 0; wrs = s.Next() {
		if n == 0 {
			from = wrs[0].Imm
		}
		n += len(wrs)
		s.Posted(len(wrs))
	}
	if n == 0 {
		return "posted nothing"
	}
	return fmt.Sprintf("posted %d..%d", from, from+uint32(n)-1)
}

func (s *numbered) resume(received uint64) string {
	n, err := s.Arrived(received)
	if err != nil {
		return "refused"
	}
	for range n {
		s.Delivered()
	}
	s.Resume()
	return s.post()
}

func (s *numbered) String() string {
	held := "none"
	if n := s.Unconfirmed; n > 0 {
		held = fmt.Sprintf("%d..%d", s.At(0).Imm, s.At(n-1).Imm)
	}
	return fmt.Sprintf("held %s unposted %d done %d reached %d received %d", held, s.Unposted, s.Done, s.reached, s.Received)
}

// Whatever breaks, and wherever queue pairs break, the peer receives every message once and in order.
func TestStreamDeliversEveryMessageOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newNumbered(rapid.IntRange(1, 6).Draw(t, "depth"))
		var wire []uint32 // posted to the queue pair and not delivered
		delivered, known := uint32(0), uint32(0)
		post := func() {
			for wrs := s.Next(); len(wrs) > 0; wrs = s.Next() {
				for i := range wrs {
					wire = append(wire, wrs[i].Imm)
				}
				s.Posted(len(wrs))
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			switch rapid.SampledFrom([]string{"put", "post", "deliver", "sent", "break", "resume"}).Draw(t, "event") {
			case "put":
				if s.Unconfirmed < len(s.wrs) {
					s.put(1)
				}
			case "post":
				post()
			case "deliver":
				if len(wire) > 0 {
					if wire[0] != delivered {
						t.Fatalf("message %d came when %d was next", wire[0], delivered)
					}
					wire, delivered = wire[1:], delivered+1
				}
			case "sent":
				if known < delivered && !s.broken {
					s.Delivered()
					known++
				}
			case "break":
				s.Break()
				wire = nil
			case "resume":
				if !s.broken {
					continue
				}
				n, err := s.Arrived(uint64(delivered))
				if err != nil {
					t.Fatal(err)
				}
				for range n {
					s.Delivered()
				}
				known = delivered
				s.Resume()
				post()
			}
			if done, reached := s.Done, s.reached; uint64(delivered) < done || uint64(delivered) > reached ||
				reached > done+uint64(s.Unconfirmed) {
				t.Fatalf("done %d, delivered %d, reached %d, held %d", done, delivered, reached, s.Unconfirmed)
			}
		}
	})
}
