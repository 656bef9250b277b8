package hierarchy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// story is racks whose events are written as it goes.
type story struct {
	net
	out strings.Builder
}

var actionNames = map[ActionKind]string{
	Combine: "combines", Finish: "finishes", SendSum: "sends its sum of", SendResult: "sends the result of", Return: "returns",
	Discard: "discards", Follow: "follows with", SendRequest: "requests", SendRecall: "recalls", SendNACK: "NACKs",
	SendTaken: "has taken",
	Violate:   "ends the job at",
}

// react writes what a rack's reducer asks for, and does it.
func (s *story) react(rack int) {
	for _, a := range s.machines[rack].Actions() {
		fmt.Fprintf(&s.out, "%d %s chunk %d", rack, actionNames[a.Kind], a.Index)
		switch a.Kind {
		case SendSum, SendResult, SendRequest, SendRecall, SendNACK, SendTaken:
			fmt.Fprintf(&s.out, " -> %d", a.Peer)
		case Violate:
			fmt.Fprintf(&s.out, ": %v", a.Err)
		}
		s.out.WriteByte('\n')
	}
	s.carry(rack)
}

// command runs one line of a story.
func (s *story) command(t *testing.T, line string) {
	words := strings.Fields(line)
	var n [2]int
	for i := range words[1:] {
		if i < 2 && words[1+i] != "broadcast" {
			if _, err := fmt.Sscan(words[1+i], &n[i]); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	}
	rack := n[0]
	m := s.machines[rack]
	switch words[0] {
	case "ready":
		s.ready[rack][uint32(n[1])] = true
		m.Ready(uint32(n[1]), strings.HasSuffix(line, "broadcast"))
	case "deliver":
		if len(s.queues[n]) == 0 {
			t.Fatalf("%q: no message is under way", line)
		}
		s.receive(n, s.react)
		return
	case "settle": // delivers all messages
		for again := true; again; {
			again = false
			for from := range s.machines {
				for to := range s.machines {
					for link := [2]int{from, to}; len(s.queues[link]) > 0; again = true {
						s.receive(link, s.react)
					}
				}
			}
		}
		return
	case "tick":
		m.Tick(true)
	case "stall": // as many ticks as it takes until racks follow
		for range followAfter {
			m.Tick(true)
		}
	case "yield":
		m.Yield()
	default:
		t.Fatalf("unknown line %q", line)
	}
	s.react(rack)
}

// Each script tells a story. The commands are the events of a rack, and below them are the actions of all racks.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d stories: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			var s *story
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd == "new" {
					var shape string
					top, chunks, window := Topology{Pods: 1}, 1, 2
					d.ScanArgs(t, "shape", &shape)
					d.ScanArgs(t, "racks", &top.Racks)
					d.MaybeScanArgs(t, "pods", &top.Pods)
					d.MaybeScanArgs(t, "chunks", &chunks)
					d.MaybeScanArgs(t, "window", &window)
					if top.Shape, err = ParseShape(shape); err != nil {
						t.Fatal(err)
					}
					s = &story{net: newNet(t, top, chunks, window, chunks, 16)}
					return ""
				}
				s.out.Reset()
				for line := range strings.Lines(d.Input) {
					s.command(t, strings.TrimSpace(line))
				}
				return s.out.String()
			})
		})
	}
}
