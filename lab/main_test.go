package lab

import (
	"context"
	"strings"
	"testing"
	"time"
)

// bootTime bounds the attempts to boot a guest. On a machine with much other work one attempt took more than a minute.
const bootTime = 6 * time.Minute

// bootAll boots guests for one test, and fails the test with the complaints of their kernels.
func bootAll(t *testing.T, cfgs ...Config) *Rack {
	t.Helper()
	if testing.Short() {
		t.Skip("boots QEMU guests: left out by -short")
	}
	rack, err := BootAll(within(t, bootTime), cfgs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
	return rack
}

func bootShape(t *testing.T, s Shape) *Rack {
	t.Helper()
	cfgs, err := s.Configs()
	if err != nil {
		t.Fatal(err)
	}
	for i := range cfgs {
		cfgs[i].Deadline = 25 * time.Minute // on a machine with other work
	}
	return bootAll(t, cfgs...)
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// patience bounds what a guest may take on a machine with much other work, where it may get a tenth of a processor. It ends tests
// that hang; how long something takes is logged, and no test of it.
const patience = 10 * time.Minute

// run runs a script that must succeed.
func run(t *testing.T, g *Guest, script string) string {
	t.Helper()
	out, err := g.Run(within(t, patience), script)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(out)
}
