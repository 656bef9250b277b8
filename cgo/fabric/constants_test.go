package fabric

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every enumerator of the header has its constant.
func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	header, err := os.ReadFile("base/fabric.h")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("constants.go")
	if err != nil {
		t.Fatal(err)
	}
	used := regexp.MustCompile(`= C\.(RWF_\w+)`).FindAllStringSubmatch(string(source), -1)
	declared := 0
	for _, enum := range regexp.MustCompile(`(?s)enum [\w ]*\{(.*?)\}`).FindAllStringSubmatch(string(header), -1) {
		for _, e := range regexp.MustCompile(`\b(RWF_\w+) = `).FindAllStringSubmatch(enum[1], -1) {
			declared++
			if !slices.ContainsFunc(used, func(u []string) bool { return u[1] == e[1] }) {
				t.Errorf("constants.go has no constant for %s", e[1])
			}
		}
	}
	if declared < 40 {
		t.Errorf("only %d enumerators were found in the header", declared)
	}
	for s := range Status(25) {
		if name := s.String(); name == "" || (s == WCSuccess) != (name == "success") {
			t.Errorf("status %d is called %q", s, name)
		}
	}
	for _, e := range []EventType{EventQPEstablished, EventQPFatal, EventCQErr, EventPortActive, EventPortErr, EventDeviceFatal} {
		if strings.HasPrefix(e.String(), "unknown") {
			t.Errorf("event %d is called %q", uint32(e), e)
		}
	}
}
