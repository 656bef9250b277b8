package racks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "rackweave-racks-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(folder)
		os.Exit(code)
	}))
}

// probe asks once whether fabrics can be built here.
var probe = sync.OnceValue(func() error { return Probe(context.Background()) })

// fabrics numbers the fabrics of this process.
var fabrics atomic.Uint32

// up builds a fabric for one test, which runs beside others.
func up(t *testing.T, c Config) *Fabric {
	t.Helper()
	t.Parallel()
	switch err := probe(); {
	case errors.Is(err, os.ErrPermission):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	c.Name = fmt.Sprintf("rwt%d-%d", os.Getpid(), fabrics.Add(1))
	f, err := Up(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// send carries bytes from one host to another over TCP and returns how long that took.
func send(t *testing.T, from, to Host, bytes int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const server = `import socket; s = socket.create_server(("", 7000)); print("up", flush=True); c = s.accept()[0]
while c.recv(1 << 20): pass`
	argv := to.Command("python3", "-c", server)
	sink := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := sink.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	client := fmt.Sprintf(`import socket; s = socket.create_connection((%q, 7000)); s.sendall(bytes(%d))`, to.Addr, bytes)
	argv = from.Command("python3", "-c", client)
	source := exec.CommandContext(ctx, argv[0], argv[1:]...)
	start := time.Now()
	said, err := source.CombinedOutput()
	if err := errors.Join(err, sink.Wait()); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return time.Since(start)
}

func TestLinksHaveTheirRatesAndCountersTheirBytes(t *testing.T) {
	f := up(t, Config{Racks: 2, Workers: 2, Rate: 80e6, Core: 4})
	for name, tc := range map[string]struct {
		from, to Host
		rate     float64
		uplink   bool
	}{
		"within a rack":                 {f.Worker(0, 0), f.Worker(0, 1), 80e6, false},
		"to the aggregator of the rack": {f.Worker(1, 0), f.Aggregator(1), 80e6, false},
		"through the core":              {f.Worker(0, 0), f.Worker(1, 1), 40e6, true},
		"from aggregator to aggregator": {f.Aggregator(0), f.Aggregator(1), 40e6, true},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := f.Counters(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			const bytes = 4 << 20
			took := send(t, tc.from, tc.to, bytes)
			after, err := f.Counters(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if least := time.Duration(0.9 * bytes * 8 / tc.rate * 1e9); took < least {
				t.Errorf("%d bytes took %v, not at least %v", bytes, took, least)
			}
			through := after[UplinkPort(0)].Since(before[UplinkPort(0)])
			if got := through.Sent > bytes && float64(through.Sent) < 1.03*bytes; got != tc.uplink {
				t.Errorf("rack 0's uplink sent %d bytes of %d", through.Sent, bytes)
			}
		})
	}
	if n, err := f.Retransmits(t.Context()); err != nil || n > 20 {
		t.Errorf("%d segments were sent again, %v", n, err)
	}
}

func TestACutUplinkCarriesNothing(t *testing.T) {
	f := up(t, Config{Racks: 2, Workers: 1, Rate: 80e6, Core: 1})
	reaches := func() bool {
		const connect = `import socket, sys
try: socket.create_connection((sys.argv[1], 9), timeout=1)
except ConnectionRefusedError: pass` // by a host that is there
		argv := f.Worker(0, 0).Command("python3", "-c", connect, f.Worker(1, 0).Addr)
		return exec.CommandContext(t.Context(), argv[0], argv[1:]...).Run() == nil
	}
	if !reaches() {
		t.Fatal("the other rack does not answer")
	}
	if err := f.CutUplink(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	if reaches() {
		t.Error("the other rack answers over a cut link")
	}
	if err := f.CutUplink(t.Context(), 1, false); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if reaches() {
			return
		}
	}
	t.Error("the other rack does not answer over a link that is up again")
}

func TestBadFabricsAreRefused(t *testing.T) {
	good := Config{Name: "x", Racks: 2, Workers: 4, Rate: 1e8, Core: 8}
	for want, spoil := range map[string]func(*Config){
		`racks named ""`:        func(c *Config) { c.Name = "" },
		`racks named "a;b"`:     func(c *Config) { c.Name = "a;b" },
		"0 racks of 4 workers":  func(c *Config) { c.Racks = 0 },
		"2 racks in 3 pods":     func(c *Config) { c.Pods = 3 },
		"pod uplinks of 4e+09":  func(c *Config) { c.Rate, c.Workers, c.Core, c.Pods = 2e9, 2, 1, 2 },
		"2 racks of 201":        func(c *Config) { c.Workers = 201 },
		"links of 1e+10 bit/s":  func(c *Config) { c.Rate = 1e10 },
		"oversubscribed 0.5:1":  func(c *Config) { c.Core = 0.5 },
		"oversubscribed 1000:1": func(c *Config) { c.Core = 1000 },
	} {
		c := good
		spoil(&c)
		if _, err := Up(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}
