package data

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// The ways of dealing.
const (
	dealQueue  = "queue"
	dealFixed  = "fixed"
	dealShards = "shards"
)

// maxBatch bounds the rows of a batch: they are 2 MiB of an answer.
const maxBatch = 1 << 18

// Roughly, in bytes: a row of an answer while it is made and sent; a lease; a group in a set's orders, draws and manifest.
const (
	answerCost = 40
	leaseCost  = 128
	groupCost  = 512
)

// agreed are the fields of requests in which all workers agree, and stated those of states that go on only with the same.
var (
	agreed = []string{"workers", "manifest", "rows", "digest", "seed", "deal", "plain", "batch", "balance", "favour", "asynchronous"}
	stated = []string{"rows", "digest", "seed", "deal", "plain", "step"}
)

// differ returns the first of the named fields in which two messages of a type differ, and both values.
func differ(a, b proto.Message, names ...string) (name string, x, y any) {
	for _, name := range names {
		field := a.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
		if x, y := a.ProtoReflect().Get(field), b.ProtoReflect().Get(field); !x.Equal(y) {
			if field.Kind() == protoreflect.BytesKind {
				return name, fmt.Sprintf("%.32x", x.Bytes()), fmt.Sprintf("%.32x", y.Bytes())
			}
			if field.Kind() == protoreflect.StringKind {
				return name, rpc.Printable(x.String(), rpc.MaxNameBytes), rpc.Printable(y.String(), rpc.MaxNameBytes)
			}
			return name, x, y
		}
	}
	return "", nil, nil
}

// termsOf reads and checks a request.
func termsOf(c *Caller, r *api.OpenDataRequest) (*api.OpenDataRequest, error) {
	t := &api.OpenDataRequest{Manifest: r.Manifest, Rows: r.Rows, Digest: r.Digest, Seed: r.Seed, Deal: cmp.Or(r.Deal, dealQueue),
		Plain: r.Plain, Batch: r.Batch, Balance: r.Balance, Favour: r.Favour, Workers: uint32(c.Workers), Asynchronous: !c.Synchronous}
	var err error
	switch known := t.Deal == dealQueue || t.Deal == dealFixed || t.Deal == dealShards; {
	case !known:
		err = fmt.Errorf("deal %q: use queue, fixed or shards", rpc.Printable(r.Deal, rpc.MaxNameBytes))
	case (r.Manifest == "") == (r.Rows == 0), r.Rows > deal.MaxRows:
		err = fmt.Errorf("manifest %q and %d rows: give a manifest, or 1 to 2^40 rows", rpc.Printable(r.Manifest, rpc.MaxNameBytes),
			r.Rows)
	case len(r.Digest) > 0 && (r.Manifest == "" || len(r.Digest) != sha256.Size):
		err = fmt.Errorf("digest of %d bytes, manifest %q: give that of a manifest, of %d bytes, or none", len(r.Digest),
			rpc.Printable(r.Manifest, rpc.MaxNameBytes), sha256.Size)
	case t.Deal == dealShards && r.Manifest == "":
		err = errors.New("deal shards without a manifest: give one, which has the shards")
	case r.Batch < 1 || r.Batch > maxBatch:
		err = fmt.Errorf("batch of %d rows: use 1 to %d", r.Batch, maxBatch)
	case r.Balance && (t.Deal != dealQueue || t.Asynchronous || int(r.Batch)*c.Workers > maxBatch):
		err = fmt.Errorf("balanced batches, deal %s, asynchronous %v, %d rows in a step: only a synchronous queue of at most %d has them", t.Deal,
			t.Asynchronous, int(r.Batch)*c.Workers, maxBatch)
	case !(r.Favour >= 0 && r.Favour <= 10), r.Favour > 0 && (t.Deal != dealQueue || r.Plain || r.Manifest == ""):
		err = fmt.Errorf("favour %v, deal %s, plain %v: use 0 to 10, and a queue over the groups of a manifest", r.Favour, t.Deal, r.Plain)
	}
	return t, err
}

// acquire opens the manifest that the terms name, and charges the job for the set.
func (st *set) acquire(s *Server, c *Caller) (err error) {
	st.manifest = nil
	if st.terms.Manifest != "" {
		if st.manifest, err = s.openManifest(st.terms.Manifest); err != nil {
			return err
		}
	}
	st.giveBack = func() {}
	if c.Account != nil {
		n := 1
		if st.manifest != nil {
			n += len(st.manifest.Sizes())
		}
		giveBack, err := c.Set(int64(c.Workers)*deal.MaxLeases*leaseCost + int64(n)*groupCost)
		if err != nil {
			st.giveBack = func() {}
			st.release()
			return err
		}
		st.giveBack = giveBack
	}
	return nil
}

// release undoes acquire.
func (st *set) release() {
	st.giveBack()
	if st.manifest != nil {
		st.manifest.Close()
	}
}

// openManifest opens a manifest of the server's folder.
func (s *Server) openManifest(name string) (*manifest.Manifest, error) {
	if s.Dir == "" {
		return nil, errors.New("no folder of manifests: start the service with --data-dir DIR, or open the set with a number of rows")
	}
	if name != filepath.Base(name) || !fs.ValidPath(name) || name == "." {
		return nil, fmt.Errorf("manifest %q: name a file in the service's folder, without a path", rpc.Printable(name, rpc.MaxNameBytes))
	}
	path := filepath.Join(s.Dir, name)
	switch info, err := os.Lstat(path); {
	case err != nil:
		return nil, fmt.Errorf("manifest %q: %w in the service's folder", name, errors.Unwrap(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("manifest %q is not a regular file: copy it into the folder", name)
	}
	return manifest.Open(path)
}

// fits checks the manifest against the terms, and completes them.
func (st *set) fits() error {
	t, digest := st.terms, st.manifest.Digest()
	switch {
	case len(t.Digest) > 0 && !bytes.Equal(t.Digest, digest[:]):
		return fmt.Errorf("manifest %q has digest %x, the worker expects %x: it is the manifest of another input", t.Manifest, digest, t.Digest)
	case t.Deal == dealShards && st.manifest.Header().Workers != int(t.Workers):
		return fmt.Errorf("manifest %q has %d shards, the job %d workers: make one with --workers %d", t.Manifest, st.manifest.Header().Workers, t.Workers,
			t.Workers)
	}
	for worker := range st.manifest.Header().Workers {
		if t.Deal == dealShards && st.manifest.ShardSizes(worker).Total() == 0 {
			return fmt.Errorf("manifest %q has no rows for worker %d: make one with --start rotate, or for fewer workers", t.Manifest, worker)
		}
	}
	t.Digest, t.Rows = digest[:], st.manifest.Sizes().Total()
	return st.manifest.Sizes().Check()
}

// sizes returns the rows of the groups of a worker's shard, or of the whole set if it is -1.
func (st *set) sizes(worker int) deal.Sizes {
	var sizes deal.Sizes
	switch {
	case st.manifest == nil:
		return deal.Sizes{st.terms.Rows}
	case worker < 0:
		sizes = st.manifest.Sizes()
	default:
		sizes = st.manifest.ShardSizes(worker)
	}
	if st.terms.Plain {
		sizes = deal.Sizes{sizes.Total()}
	}
	return sizes
}

// row returns the number of the row at a place.
func (st *set) row(worker int, p deal.Place) (uint64, error) {
	switch {
	case st.manifest == nil || st.terms.Plain && worker < 0:
		return p.Index, nil
	case worker < 0:
		return st.manifest.Row(p)
	case st.terms.Plain:
		for g, n := range st.manifest.ShardSizes(worker) {
			if p.Group = g; p.Index < n {
				break
			}
			p.Index -= n
		}
	}
	return st.manifest.ShardRow(worker, p)
}

// state returns the set's progress.
func (st *set) state() (*api.DataState, error) {
	if st.restored != nil {
		return st.restored, nil
	}
	s, err := st.dealer.State()
	if err != nil {
		return nil, fmt.Errorf("set %q: %w", st.name, err)
	}
	out, oldest := st.identity(), s.Epoch
	out.Epoch, out.Cursor = s.Epoch, s.Cursor
	for _, r := range s.Returned {
		oldest = min(oldest, r.Epoch)
		out.Returned = append(out.Returned, &api.RowRange{Epoch: r.Epoch, From: r.From, To: r.To})
	}
	for i, d := range st.draws {
		if i+1 == len(st.draws) || st.draws[i+1].Epoch > oldest {
			out.Draws = append(out.Draws, d)
		}
	}
	return out, nil
}

// identity returns a state of the set without progress.
func (st *set) identity() *api.DataState {
	t := st.terms
	s := &api.DataState{Set: st.name, Manifest: t.Manifest, Rows: t.Rows, Digest: t.Digest, Seed: t.Seed, Deal: t.Deal, Plain: t.Plain}
	if t.Deal != dealQueue {
		s.Step = uint64(t.Batch) * uint64(t.Workers)
	}
	return s
}

// goOn reads a state, and checks that it is of the same rows in the same order. If it is nil, they begin.
func (st *set) goOn(from *api.DataState) (s deal.State, err error) {
	if from == nil {
		return s, nil
	}
	if name, have, mine := differ(from, st.identity(), stated...); name != "" {
		return s, fmt.Errorf("the state to go on from has %s %v, and worker %d opens the set with %v: open it as before, or another set", name, have,
			st.first, mine)
	}
	if len(from.Draws) > 0 && st.terms.Deal != dealQueue {
		return s, fmt.Errorf("the state draws rows of groups, and the set is dealt by %s: only a queue favours groups", st.terms.Deal)
	}
	sizes := st.sizes(-1)
	for i, d := range from.Draws {
		rows := deal.Sizes(d.GetRows())
		bad := i > 0 && d.GetEpoch() <= from.Draws[i-1].GetEpoch() || len(rows) != len(sizes) || rows.Check() != nil ||
			rows.Total() != sizes.Total()
		for g := 0; g < len(rows) && !bad; g++ {
			bad = rows[g] > 0 && sizes[g] == 0
		}
		if bad {
			return s, fmt.Errorf("the state draws %d rows of %d groups from epoch %d on, and the groups have %d rows in %d: use what State returned",
				rows.Total(), len(rows), d.GetEpoch(), sizes.Total(), len(sizes))
		}
	}
	s = deal.State{Epoch: from.Epoch, Cursor: from.Cursor}
	for _, r := range from.Returned {
		s.Returned = append(s.Returned, deal.Range{Epoch: r.GetEpoch(), From: r.GetFrom(), To: r.GetTo()})
	}
	return s, nil
}
