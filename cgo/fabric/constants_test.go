package fabric

import (
	"strings"
	"testing"
)

func TestStatusesAndEventsHaveNames(t *testing.T) {
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
