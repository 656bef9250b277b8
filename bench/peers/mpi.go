package peers

import (
	"context"
	"crypto/sha256"
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
type mpi struct{ mpirun, binary string }

// OpenMPI is MPI_Allreduce of Open MPI, over shared memory.
func OpenMPI() Peer { return newProgram("mpi", &mpi{}, mpiSettings) }

// Probe finds Open MPI and compiles the program, once for each version of it.
func (m *mpi) Probe(ctx context.Context) error {
	// Debian's alternatives may point mpirun to another MPI, whose options differ; these names always are Open MPI.
	mpirun, runErr := firstOf("mpirun.openmpi", "mpirun")
	mpicc, ccErr := firstOf("mpicc.openmpi", "mpicc")
	if runErr != nil || ccErr != nil {
		return fmt.Errorf("mpi: %w: no mpirun and mpicc; install them: apt-get install -y openmpi-bin libopenmpi-dev", ErrMissing)
	}
	binary, err := compile(ctx, mpicc)
	if err != nil {
		return fmt.Errorf("mpi: %w", err)
	}
	m.mpirun, m.binary = mpirun, binary
	return nil
}

func firstOf(names ...string) (string, error) {
	var err error
	for _, name := range names {
		var path string
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}

// compile returns the program, from the user's cache if it is there.
func compile(ctx context.Context, mpicc string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder of this user's for the program that runs Open MPI: set HOME or XDG_CACHE_HOME: %w", err)
	}
	cache = filepath.Join(cache, "rackweave", "peers")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("making the cache: %w", err)
	}
	dir, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", fmt.Errorf("making the cache: %w", err)
	}
	defer os.RemoveAll(dir)
	// The flags name the installed library, so that a program is not run with another than it was compiled for.
	flags, err := command.Run(ctx, time.Minute, dir, []string{mpicc, "--showme:version"})
	if err != nil {
		return "", fmt.Errorf("%w: install Open MPI's compiler: apt-get install -y libopenmpi-dev: %w", ErrMissing, err)
	}
	sum := sha256.Sum256(append(append([]byte(mpicc), flags...), mpiSource...))
	binary := filepath.Join(cache, fmt.Sprintf("mpi-%x", sum[:8]))
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	source, built := filepath.Join(dir, "mpi.c"), filepath.Join(dir, "mpi")
	if err := os.WriteFile(source, mpiSource, 0o600); err != nil {
		return "", err
	}
	if _, err := command.Run(ctx, time.Minute, dir,
		[]string{mpicc, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", built, source}); err != nil {
		return "", err
	}
	return binary, os.Rename(built, binary)
}

func (m *mpi) command(spec Spec, s setting, _, tensors string) ([]string, error) {
	if m.binary == "" {
		panic("peers: mpi is run before it was probed")
	}
	if spec.DType != "f32" {
		return nil, fmt.Errorf("dtype %q: %w, MPI has no such type: use f32", spec.DType, ErrUnsupported)
	}
	argv := append([]string{m.mpirun, "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(spec.Workers)}, s.args...)
	argv = append(argv, m.binary, strconv.FormatUint(spec.Bytes, 10), strconv.Itoa(spec.Iters), strconv.Itoa(spec.Warmup))
	if tensors != "" {
		argv = append(argv, tensors)
	}
	return argv, nil
}
