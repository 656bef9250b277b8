package data

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

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

// Estimated memory in bytes: of a row of an answer while it is made and sent; a lease; a group in a set's orders, draws and
// manifest; a group in the order of a worker; a range of a state, and a group in its draws.
const (
	answerCost = 40
	leaseCost  = 128
	groupCost  = 512
	orderCost  = 256
	rangeCost  = 128
	drawCost   = 16
)

// All workers must give the same agreed fields of a request. A state can be continued only with the same stated fields.
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

// dealing holds the terms, the dealer and the orders of a set since its workers began together.
type dealing struct {
	terms    *api.OpenDataRequest // on which all workers agree
	first    int                  // the worker that set the terms
	manifest *manifest.Manifest   // if nil, rows are known by number alone
	giveBack func()               // what was charged
	dealer   deal.Dealer
	plan     *deal.Plan // if nil, batch sizes stay
	epoch    uint64     // the last that was dealt from
	draws    []*api.GroupDraws
	orders   map[int]ordered // by worker; of a queue one is enough
}

// ordered is an order of an epoch, at the position where the last batch ended.
type ordered struct {
	*deal.Order
	epoch uint64
}

// termsOf reads and checks a request.
func termsOf(c *Caller, r *api.OpenDataRequest) (*api.OpenDataRequest, error) {
	t := &api.OpenDataRequest{Manifest: r.Manifest, Rows: r.Rows, Digest: r.Digest, Seed: r.Seed, Deal: cmp.Or(r.Deal, dealQueue),
		Plain: r.Plain, Batch: r.Batch, Balance: r.Balance, Favour: r.Favour, Workers: uint32(c.Workers), Asynchronous: !c.Synchronous,
		Set: cmp.Or(r.Set, usualSet), State: r.State}
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

// newDealing begins as a worker asks, from a state if it is not nil. It charges the job and opens the manifest, or takes over both
// from an earlier dealing with the same terms.
func newDealing(s *Server, c *Caller, terms *api.OpenDataRequest, from *api.DataState, earlier *dealing) (d *dealing, err error) {
	d = &dealing{terms: terms, first: c.Rank, giveBack: func() {}, orders: map[int]ordered{}}
	if earlier != nil {
		d.manifest, d.giveBack = earlier.manifest, earlier.giveBack
	} else {
		defer func() {
			if err != nil {
				d.release()
			}
		}()
		if err := d.acquire(s, c, from); err != nil {
			return d, err
		}
	}
	if d.manifest != nil {
		if err := d.fits(); err != nil {
			return d, err
		}
	}
	if from.GetSet() == "" {
		from = nil // the beginning, whatever else it holds
	}
	state, err := d.goOn(from)
	if err != nil {
		return d, err
	}
	d.epoch, d.draws = state.Epoch, from.GetDraws()
	workers, batch := int(terms.Workers), int(terms.Batch)
	if terms.Balance {
		if d.plan, err = deal.NewPlan(batch*workers, workers); err != nil {
			return d, err
		}
	}
	if terms.Deal == dealQueue {
		d.dealer, err = deal.NewLedger(terms.Rows, workers, !terms.Asynchronous, state)
	} else {
		d.dealer, err = deal.NewFixed(terms.Rows, slices.Repeat([]uint64{uint64(batch)}, workers), terms.Deal == dealShards, state)
	}
	if err == nil && s.dealer != nil {
		d.dealer, err = s.dealer(c.Job, terms, d.dealer)
	}
	terms.State = nil // it may be long
	return d, err
}

// acquire opens the manifest that the terms name, and charges the job for the set and its state.
func (d *dealing) acquire(s *Server, c *Caller, from *api.DataState) (err error) {
	groups, histogram := 1, 0
	if d.terms.Manifest != "" {
		if d.manifest, err = s.openManifest(d.terms.Manifest); err != nil {
			return err
		}
		groups += len(d.manifest.Sizes())
		histogram = d.manifest.Header().Workers * len(d.manifest.Sizes())
	}
	if c.Account == nil {
		return nil
	}
	cost := int64(c.Workers)*deal.MaxLeases*leaseCost + int64(groups)*groupCost + int64(histogram)*drawCost
	if d.terms.Deal != dealQueue && !d.terms.Plain {
		cost += int64(c.Workers) * int64(groups) * orderCost
	}
	giveBack, err := c.Set(cost + costOf(len(from.GetReturned()), from.GetDraws()))
	if err == nil {
		d.giveBack = giveBack
	}
	return err
}

// costOf returns the memory for a state, in bytes.
func costOf(ranges int, draws []*api.GroupDraws) int64 {
	cost := int64(ranges) * rangeCost
	for _, d := range draws {
		cost += int64(len(d.GetRows())) * drawCost
	}
	return cost
}

// release undoes acquire.
func (d *dealing) release() {
	if d == nil {
		return
	}
	d.giveBack()
	if d.manifest != nil {
		d.manifest.Close()
	}
}

// differs returns why a worker cannot open the set as it is.
func (d *dealing) differs(c *Caller, terms *api.OpenDataRequest) error {
	if d == nil {
		return ErrUnknown
	}
	names := slices.DeleteFunc(slices.Clone(agreed), func(n string) bool {
		return n == "rows" && terms.Manifest != "" || n == "digest" && len(terms.Digest) == 0
	})
	if name, have, mine := differ(d.terms, terms, names...); name != "" {
		return fmt.Errorf("worker %d opens it with %s %v, and worker %d has opened it with %v: all open it alike", c.Rank, name, mine, d.first, have)
	}
	return nil
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
		return nil, fmt.Errorf("manifest %q: %w in the service's folder, which its --data-dir names", name, errors.Unwrap(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("manifest %q is not a regular file: copy it into the folder", name)
	}
	return manifest.Open(path)
}

// fits checks the manifest against the terms, and completes them.
func (d *dealing) fits() error {
	t, digest := d.terms, d.manifest.Digest()
	switch {
	case len(t.Digest) > 0 && !bytes.Equal(t.Digest, digest[:]):
		return fmt.Errorf("manifest %q has digest %x, the worker expects %x: it is the manifest of another input", t.Manifest, digest, t.Digest)
	case t.Deal == dealShards && d.manifest.Header().Workers != int(t.Workers):
		return fmt.Errorf("manifest %q has %d shards, the job %d workers: make one with --workers %d", t.Manifest, d.manifest.Header().Workers, t.Workers,
			t.Workers)
	}
	for worker := range d.manifest.Header().Workers {
		if t.Deal == dealShards && d.manifest.ShardSizes(worker).Total() == 0 {
			return fmt.Errorf("manifest %q has no rows for worker %d: make one with --start rotate, or for fewer workers", t.Manifest, worker)
		}
	}
	t.Digest, t.Rows = digest[:], d.manifest.Sizes().Total()
	return d.manifest.Sizes().Check()
}

// sizes returns the rows of the groups of a worker's shard, or of the whole set if it is -1.
func (d *dealing) sizes(worker int) deal.Sizes {
	var sizes deal.Sizes
	switch {
	case d.manifest == nil:
		return deal.Sizes{d.terms.Rows}
	case worker < 0:
		sizes = d.manifest.Sizes()
	default:
		sizes = d.manifest.ShardSizes(worker)
	}
	if d.terms.Plain {
		sizes = deal.Sizes{sizes.Total()}
	}
	return sizes
}

// row returns the number of the row at a place.
func (d *dealing) row(worker int, p deal.Place) (uint64, error) {
	switch {
	case d.manifest == nil || d.terms.Plain && worker < 0:
		return p.Index, nil
	case worker < 0:
		return d.manifest.Row(p)
	case d.terms.Plain:
		for g, n := range d.manifest.ShardSizes(worker) {
			if p.Group = g; p.Index < n {
				break
			}
			p.Index -= n
		}
	}
	return d.manifest.ShardRow(worker, p)
}

// progress returns how far the set is. c is charged for it, if it is not nil.
func (d *dealing) progress(c *Caller) (*api.DataState, error) {
	s, err := d.dealer.State()
	if err != nil {
		return nil, err
	}
	if c != nil {
		if err := c.charge("state", costOf(len(s.Returned), d.draws)); err != nil {
			return nil, err
		}
	}
	out, oldest := d.identity(), s.Epoch
	out.Epoch, out.Cursor = s.Epoch, s.Cursor
	for _, r := range s.Returned {
		oldest = min(oldest, r.Epoch)
		out.Returned = append(out.Returned, &api.RowRange{Epoch: r.Epoch, From: r.From, To: r.To})
	}
	for i, draws := range d.draws {
		if i+1 == len(d.draws) || d.draws[i+1].Epoch > oldest {
			out.Draws = append(out.Draws, draws)
		}
	}
	return out, nil
}

// identity returns a state of the set without progress.
func (d *dealing) identity() *api.DataState {
	t := d.terms
	s := &api.DataState{Set: t.Set, Manifest: t.Manifest, Rows: t.Rows, Digest: t.Digest, Seed: t.Seed, Deal: t.Deal, Plain: t.Plain}
	if t.Deal != dealQueue {
		s.Step = uint64(t.Batch) * uint64(t.Workers)
	}
	return s
}

// goOn reads a state, and checks that it is of the same rows in the same order. If it is nil, they begin.
func (d *dealing) goOn(from *api.DataState) (s deal.State, err error) {
	if from == nil {
		return s, nil
	}
	if name, have, mine := differ(from, d.identity(), stated...); name != "" {
		return s, fmt.Errorf("the state to go on from has %s %v, and worker %d opens the set with %v: open it as before, or another set", name, have,
			d.first, mine)
	}
	if len(from.Draws) > 0 && d.terms.Deal != dealQueue {
		return s, fmt.Errorf("the state draws rows of groups, and the set is dealt by %s: only a queue favours groups", d.terms.Deal)
	}
	sizes := d.sizes(-1)
	for i, draws := range from.Draws {
		rows, late := deal.Sizes(draws.GetRows()), i == 0 || draws.GetEpoch() > from.Draws[i-1].GetEpoch()
		if !late || len(rows) != len(sizes) || rows.Check() != nil || rows.Total() != sizes.Total() {
			return s, fmt.Errorf("the state draws %d rows of %d groups from epoch %d on, and the groups have %d rows in %d: use what State returned",
				rows.Total(), len(rows), draws.GetEpoch(), sizes.Total(), len(sizes))
		}
	}
	s = deal.State{Epoch: from.Epoch, Cursor: from.Cursor}
	for _, r := range from.Returned {
		s.Returned = append(s.Returned, deal.Range{Epoch: r.GetEpoch(), From: r.GetFrom(), To: r.GetTo()})
	}
	return s, nil
}

// order returns the order of an epoch, of a shard or of the whole set, for a worker to take the next places of.
func (d *dealing) order(rank, shard int, epoch uint64) *deal.Order {
	if d.terms.Deal == dealQueue {
		rank = 0 // what workers ask for follows one upon the other
	}
	o := d.orders[rank]
	if o.Order == nil || o.epoch != epoch {
		var draws deal.Sizes
		for _, of := range d.draws {
			if of.Epoch <= epoch {
				draws = of.Rows
			}
		}
		seed := d.terms.Seed + uint64(shard+1)*0x9e3779b97f4a7c15 // shards do not repeat each other
		o = ordered{deal.NewOrder(d.sizes(shard), draws, seed, epoch), epoch}
		d.orders[rank] = o
	}
	return o.Order
}

// ids returns the numbers of a batch's rows, little-endian.
func (d *dealing) ids(rank int, l deal.Lease) ([]byte, error) {
	out := make([]byte, 0, 8*l.Rows())
	shard, round := -1, uint64(math.MaxUint64)
	if d.terms.Deal == dealShards { // its order goes on without end
		shard, round = rank, d.sizes(rank).Total()
	}
	for _, r := range l.Ranges {
		for r.Len() > 0 {
			epoch, at := r.Epoch, r.From
			if shard >= 0 {
				epoch, at = at/round, at%round
			}
			o := d.order(rank, shard, epoch)
			o.Seek(at)
			for n := min(r.Len(), round-at); n > 0; n-- {
				p, _ := o.Next()
				row, err := d.row(shard, p)
				if err != nil {
					return nil, err
				}
				out, r.From = binary.LittleEndian.AppendUint64(out, row), r.From+1
			}
		}
	}
	return out, nil
}

// favour lets epochs that have not begun take more rows of groups with high losses.
func (d *dealing) favour(losses []float64) error {
	rows, err := deal.Favour(d.sizes(-1), losses, d.terms.Favour)
	if err != nil {
		return err
	}
	state, err := d.progress(nil) // without the draws of epochs that are over
	if err != nil {
		return err
	}
	from := d.epoch + 1
	d.draws = append(slices.DeleteFunc(state.Draws, func(of *api.GroupDraws) bool { return of.Epoch == from }),
		&api.GroupDraws{Epoch: from, Rows: rows})
	return nil
}
