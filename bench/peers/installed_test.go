package peers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/rows"
)

// installed skips, with the command that installs it, where a peer is missing.
func installed(t *testing.T, p *Peer) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short is set: this test starts processes of other libraries for seconds")
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
	for _, peer := range []*Peer{Gloo(), OpenMPI()} {
		t.Run(peer.Name, func(t *testing.T) {
			t.Parallel()
			installed(t, peer)
			for i, s := range peer.settings {
				spec := Spec{Workers: 3, Bytes: 1_000_004, DType: "f32", Iters: 3, Warmup: 1}
				if i == 0 && peer.Name == "gloo" {
					spec.Tensors = []uint64{4, 400_000, 600_000}
				}
				got, err := peer.once(t.Context(), spec, s)
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

func TestPeersSumAndUpdateRowsRightWithEverySetting(t *testing.T) {
	embedding, err := rows.Parse("rows=300,width=5,touch=10%,zipf=1.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, optimizer := range map[string]string{"gloo": "sum", "mxnet": "sgd_mxnet"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := OfRows([]string{name}, optimizer)
			if err != nil {
				t.Fatal(err)
			}
			peer := found[0]
			installed(t, peer)
			for _, s := range peer.settings {
				got, err := peer.once(t.Context(), Spec{Workers: 3, Bytes: 30 * 24, DType: "f32", Iters: 9, Warmup: 1, Rows: embedding}, s)
				if err != nil || got.Wrong != 0 || got.TimeUS.Min <= 0 {
					t.Errorf("%s: %+v, %v; want times and no wrong elements", s.name, got, err)
				}
			}
		})
	}
}

func TestHalfPrecisionIsDoneOrRefusedAsUnsupported(t *testing.T) {
	for _, peer := range []*Peer{Gloo(), OpenMPI()} {
		t.Run(peer.Name, func(t *testing.T) {
			t.Parallel()
			installed(t, peer)
			got, err := peer.once(t.Context(), Spec{Workers: 2, Bytes: 1000, DType: "bf16", Iters: 1}, peer.settings[0])
			if err != nil && !errors.Is(err, ErrUnsupported) || got.Wrong != 0 {
				t.Errorf("error = %v, %d wrong; want none or %v", err, got.Wrong, ErrUnsupported)
			}
		})
	}
}

// mpirun gives every rank a process group of its own, so that ending mpirun's is not enough.
func TestNoRankOutlivesACancelledRun(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	p := OpenMPI()
	installed(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := p.once(ctx, Spec{Workers: 2, Bytes: 1 << 20, DType: "f32", Iters: 100_000_000}, p.settings[0]); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Fatalf("error = %v, want %v", err, context.DeadlineExceeded)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left := running(dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running: %v", left)
		}
	}
}

// running are the processes of executables in a folder.
func running(dir string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && strings.HasPrefix(exe, dir) {
			found = append(found, link)
		}
	}
	return found
}
