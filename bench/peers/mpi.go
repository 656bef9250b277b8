package peers

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rackweave/rackweave/bench/internal/command"
	"github.com/rackweave/rackweave/bench/report"
)

//go:embed scripts/mpi.c
var mpiSource []byte

// mpiSettings: with more processes than cores Open MPI's own choice of algorithm is far from its fastest, a ring in segments
// that stay in the cache, and binding the processes helps some runs and hurts others (measured with 4 and 8 processes on 2
// cores; recursive doubling, Rabenseifner's, hierarchical and shared-memory collectives, and two copies instead of CMA's one
// were no faster). Shared memory and CMA it takes by itself.
var mpiSettings = []setting{
	{report.AsInstalled, nil},
	{"unbound", []string{"--bind-to", "none"}},
	{"unbound, ring in segments of 256 KiB", segmentedRing(256 << 10)},
	{"unbound, ring in segments of 1 MiB", segmentedRing(1 << 20)},
}

func segmentedRing(bytes int) []string {
	const segmented = "5" // coll_tuned_allreduce_algorithm: its number for the segmented ring
	return []string{
		"--bind-to", "none", "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", segmented,
		"--mca", "coll_tuned_allreduce_algorithm_segmentsize", strconv.Itoa(bytes),
	}
}

// mpi runs Open MPI's mpirun on a program compiled with its mpicc.
type mpi struct{ mpirun, mpicc string }

// OpenMPI is MPI_Allreduce of Open MPI, over shared memory.
func OpenMPI() *Peer { return newPeer("mpi", &mpi{}, mpiSettings) }

func (m *mpi) probe(context.Context) error {
	// Debian's alternatives may point mpirun to another MPI, whose options differ; these names always are Open MPI.
	var runErr, ccErr error
	m.mpirun, runErr = firstOf("mpirun.openmpi", "mpirun")
	m.mpicc, ccErr = firstOf("mpicc.openmpi", "mpicc")
	if runErr != nil || ccErr != nil {
		return fmt.Errorf("%w: no mpirun and mpicc; install them: apt-get install -y openmpi-bin libopenmpi-dev", ErrMissing)
	}
	return nil
}

func firstOf(names ...string) (path string, err error) {
	for _, name := range names {
		if path, err = exec.LookPath(name); err == nil {
			break
		}
	}
	return path, err
}

func (m *mpi) command(ctx context.Context, spec Spec, s setting, dir, tensors string) ([]string, error) {
	if tensors != "" {
		return nil, fmt.Errorf("tensors one by one: %w, which sums one flat buffer", ErrUnsupported)
	}
	if spec.DType != "f32" {
		return nil, fmt.Errorf("dtype %q: %w, MPI has no such type: use f32", spec.DType, ErrUnsupported)
	}
	source, program := filepath.Join(dir, "mpi.c"), filepath.Join(dir, "mpi")
	if err := os.WriteFile(source, mpiSource, 0o600); err != nil {
		return nil, err
	}
	if _, err := command.Run(ctx, time.Minute, dir,
		[]string{m.mpicc, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source}); err != nil {
		return nil, err
	}
	argv := append([]string{m.mpirun, "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(spec.Workers)}, s.args...)
	return append(argv, program, strconv.FormatUint(spec.Bytes, 10), strconv.Itoa(spec.Iters), strconv.Itoa(spec.Warmup)), nil
}
