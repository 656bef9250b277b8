package peers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// installed skips, with the command that installs it, where a peer is missing.
func installed(t *testing.T, p Peer) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes of other libraries, which takes seconds")
	}
	err := p.Probe(t.Context())
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Every setting is one that the installed version takes (a typo in an option would pass for a setting that does not work
// here), and sums right.
func TestPeersSumRightWithEverySetting(t *testing.T) {
	for _, peer := range []Peer{Gloo(), OpenMPI()} {
		t.Run(peer.Name(), func(t *testing.T) {
			t.Parallel()
			installed(t, peer)
			p := peer.(*program)
			for i, s := range p.settings {
				spec := Spec{Workers: 3, Bytes: 1_000_004, DType: "f32", Iters: 3, Warmup: 1}
				if i == 0 {
					spec.Tensors = []uint64{4, 400_000, 600_000}
				}
				got, err := p.once(t.Context(), spec, s)
				if err != nil {
					t.Error(err)
					continue
				}
				if got.Wrong != 0 {
					t.Errorf("%s: %d wrong elements: the peer or the check is broken", s.name, got.Wrong)
				}
				if got.Version == "" || got.Transport == "" || got.TimeUS.Min <= 0 || got.TimeUS.Max < got.TimeUS.P50 {
					t.Errorf("%s: times = %+v, want a version, a transport and times", s.name, got)
				}
			}
		})
	}
}

func TestHalfPrecisionIsDoneOrRefusedAsUnsupported(t *testing.T) {
	for _, peer := range []Peer{Gloo(), OpenMPI()} {
		t.Run(peer.Name(), func(t *testing.T) {
			t.Parallel()
			installed(t, peer)
			p := peer.(*program)
			got, err := p.once(t.Context(), Spec{Workers: 2, Bytes: 1000, DType: "bf16", Iters: 1}, p.settings[0])
			if err != nil && !errors.Is(err, ErrUnsupported) || got.Wrong != 0 {
				t.Errorf("error = %v, %d wrong; want none or %v", err, got.Wrong, ErrUnsupported)
			}
		})
	}
}

// mpirun gives every rank a process group of its own, so that ending mpirun's is not enough.
func TestNoRankOutlivesACancelledRun(t *testing.T) {
	t.Parallel()
	p := OpenMPI().(*program)
	installed(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	// A copy, so that ranks of tests beside this one are not taken for its own.
	m := p.launcher.(*mpi)
	data, err := os.ReadFile(m.binary)
	if err != nil {
		t.Fatal(err)
	}
	m.binary = filepath.Join(t.TempDir(), "ranks")
	if err := os.WriteFile(m.binary, data, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := p.once(ctx, Spec{Workers: 2, Bytes: 1 << 20, DType: "f32", Iters: 100_000_000}, p.settings[0]); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Fatalf("error = %v, want %v", err, context.DeadlineExceeded)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := running(m.binary)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running: %v", left)
		}
	}
}

// running are the processes of an executable.
func running(binary string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && strings.TrimSuffix(exe, " (deleted)") == binary {
			found = append(found, link)
		}
	}
	return found
}
