// Package peers runs the all-reduce of other libraries on the same machine and under the same clock as ours, so that a comparison
// is one run and not two papers.
//
// A peer is a small script of ours (scripts/) in the binary, run with what is installed: Gloo through torch.distributed, and Open
// MPI. Each runs at its best: before its first measured run of an exchange it tries a few settings and keeps the fastest. Its
// result has the times of all settings.
package peers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench/rows"
)

var (
	// ErrMissing is a peer that is not installed; the error around it has the command that installs it.
	ErrMissing = errors.New("not installed")
	// ErrUnsupported is an exchange that a peer cannot do.
	ErrUnsupported = errors.New("not supported by this peer")
)

// Spec is a peer's exchange: an all-reduce of Bytes per worker, each worker a process.
type Spec struct {
	Workers int
	Bytes   uint64
	DType   string // f32, bf16 or f16
	Iters   int    // at least 1
	Warmup  int
	// Tensors are the bytes of each tensor, in all Bytes, to be reduced one by one. If empty, one flat buffer.
	Tensors []uint64
	// Rows, if it has any, is an embedding whose touched rows each worker exchanges, as its gradients: Bytes with their numbers.
	// Gloo sums sparse gradients, and MXNet pushes rows and pulls those of the next step.
	Rows rows.Spec
	Seed uint64 // of Rows
	// Hosts are the network namespaces of the workers, by rank. If empty, all workers are in this process's. Servers are those of a
	// kvstore's servers. If empty, one server runs beside the workers.
	Hosts, Servers []Host
	// Rate is the least bytes per second of all workers together, where slow links make it less than any machine's.
	Rate float64
}

// Host is a network namespace as `ip netns` names it, with one interface to use and its address.
type Host struct{ Namespace, Interface, Addr string }

// hostFlags returns the scripts' flags for hosts, a namespace and its address each.
func hostFlags(flag string, hosts []Host) []string {
	if len(hosts) == 0 {
		return nil
	}
	var all []string
	for _, h := range hosts {
		all = append(all, h.Namespace+"="+h.Addr)
	}
	return []string{flag, strings.Join(all, ","), "--interface", hosts[0].Interface}
}

// Names lists the peers whose exchange is a bare all-reduce. [MXNet] is another matter: ours goes through the framework then.
var Names = []string{"gloo", "mpi"}

// ByName returns the named peers, in the order of names.
func ByName(names []string) ([]*Peer, error) {
	var found []*Peer
	for _, name := range names {
		switch name {
		case "gloo":
			found = append(found, Gloo())
		case "mpi":
			found = append(found, OpenMPI())
		default:
			return nil, fmt.Errorf("unknown peer %q: use %s, or mxnet alone", name, strings.Join(Names, ", "))
		}
	}
	return found, nil
}

// OfRows returns the named peer for exchanges of rows: of their sums, or with an optimizer.
func OfRows(names []string, optimizer string) ([]*Peer, error) {
	name, sums := strings.Join(names, ","), optimizer == "sum"
	switch {
	case name == "gloo" && sums:
		return []*Peer{newPeer(name, gloo(), asInstalled)}, nil
	case name == "mxnet" && !sums:
		return []*Peer{newPeer("dist_sync", mxnet(), mxnetRowsSettings)}, nil
	}
	return nil, fmt.Errorf("--sparse with --with %s and --optimizer %s: use --with gloo without --optimizer, "+
		"or --with mxnet --optimizer sgd_mxnet", name, optimizer)
}

// deadline returns how long a run may take: start-up, and the exchanges at a rate that is slow for any peer on any machine.
func (s Spec) deadline() time.Duration {
	const (
		startup   = 60 * time.Second
		exchange  = 100 * time.Millisecond // even of nothing, with more processes than cores
		slowBytes = 50e6                   // per second, of all workers together
	)
	rate := min(slowBytes, cmp.Or(s.Rate, slowBytes))
	seconds := float64(s.Iters+s.Warmup) * float64(s.Workers) * float64(s.Bytes) / rate
	return startup + time.Duration(s.Iters+s.Warmup)*exchange + time.Duration(seconds*float64(time.Second))
}

// widened returns a 16-bit exchange in f32.
func (s Spec) widened() Spec {
	s.DType = "f32"
	s.Bytes *= 2
	s.Tensors = slices.Clone(s.Tensors)
	for i := range s.Tensors {
		s.Tensors[i] *= 2
	}
	return s
}

func (s Spec) check() error {
	if s.Workers < 1 || s.Iters < 1 || s.Warmup < 0 || s.Bytes < 4 {
		return fmt.Errorf("an exchange of %d bytes by %d workers, %d iterations after %d: at least 4 bytes, a worker and an iteration are needed",
			s.Bytes, s.Workers, s.Iters, s.Warmup)
	}
	var sum uint64
	for _, bytes := range s.Tensors {
		sum += bytes
	}
	if s.Tensors != nil && sum != s.Bytes {
		return fmt.Errorf("tensors of %d bytes in an exchange of %d", sum, s.Bytes)
	}
	return nil
}
