package launch

import (
	"strings"
	"testing"
)

func TestOfAProcessThatTalksTheLastIsKept(t *testing.T) {
	said := &Tail{}
	for range 100 {
		said.Write([]byte(strings.Repeat("x", 99) + "\n"))
	}
	said.Write([]byte("rackweave: the reason\n"))
	text := said.String()
	if len(text) > tailBytes || !strings.HasSuffix(text, "the reason") {
		t.Errorf("%d bytes kept, ending in %q", len(text), text[len(text)-20:])
	}
	var log strings.Builder
	said.Forward(&log)
	said.Write([]byte("more\n"))
	if !strings.HasSuffix(log.String(), "the reason\nmore\n") || said.String() != "" {
		t.Errorf("passed on %q, kept %q", log.String(), said.String())
	}
}
