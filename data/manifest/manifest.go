// Package manifest reads and writes divisions of a data set's rows into groups and into the shards of workers. A manifest has
// row numbers alone: it copies no data.
//
// It is an NPZ file, a zip archive with uncompressed members, which numpy.load opens:
//
//	manifest.json  the header
//	group.npy      u16[rows], the group of each row
//	worker.npy     u16[rows], the worker of each row, 65535 for everyone
//	by_group.npy   u32[rows], the rows by group, ascending in each; u64 beyond 2^32 rows
//	by_shard.npy   u32 or u64, the rows by worker and group, ascending in each; without rows that everyone has
//
// Opening reads the header alone, and a row is looked up by one read at its place.
package manifest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/npy"
)

// Bounds of a manifest.
const (
	MaxGroups  = 1 << 16 // a group is a u16
	MaxWorkers = everyone
	// MaxShares bounds groups times workers.
	MaxShares = 1 << 22
	// maxHeader bounds the header, in bytes.
	maxHeader = 128 << 20

	version  = 1
	everyone = 1<<16 - 1
)

// ErrCorrupt is wrapped by errors about a file that is damaged or not a manifest.
var ErrCorrupt = errors.New("not a whole manifest")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// Group is a group of rows. It has at least one.
type Group struct {
	Name     string `json:"name"`
	Rows     uint64 `json:"rows"`
	Everyone bool   `json:"everyone,omitempty"` // all workers have its rows
}

// Header describes a division.
type Header struct {
	Version   int        `json:"version"`
	Input     string     `json:"input"`  // the name of the input, without its folder
	SHA256    string     `json:"sha256"` // of the input
	Rows      uint64     `json:"rows"`
	How       string     `json:"how"`   // random, mod, stratified or aware
	Start     string     `json:"start"` // rotate or first: the worker with which the dealing of a group begins
	Seed      uint64     `json:"seed"`
	Workers   int        `json:"workers"`
	Label     string     `json:"label,omitempty"` // the column whose values are the groups
	Axes      int        `json:"axes,omitempty"`  // the principal axes on which rows look alike
	Groups    []Group    `json:"groups"`
	Histogram [][]uint64 `json:"histogram"` // [worker][group]: the rows that a worker has, with the rows of everyone
}

// wide returns the bytes of a row number.
func (h *Header) wide() int {
	if h.Rows > 1<<32 {
		return 8
	}
	return 4
}

const headerFile = "manifest.json"

// arrays are the names of the members with arrays.
var arrays = []string{"group.npy", "worker.npy", "by_group.npy", "by_shard.npy"}

const (
	groupArray = iota
	workerArray
	byGroup
	byShard
)

// array returns the .npy header of an array, by its place in arrays.
func (h *Header) array(a int) npy.Header {
	n := npy.Header{Order: '<', Kind: 'u', Size: 2, Shape: []uint64{h.Rows}}
	if a >= byGroup {
		n.Size = h.wide()
	}
	for _, g := range h.Groups {
		if a == byShard && g.Everyone {
			n.Shape[0] -= g.Rows
		}
	}
	return n
}

func (h *Header) sizes() data.Sizes {
	s := make(data.Sizes, len(h.Groups))
	for g := range s {
		s[g] = h.Groups[g].Rows
	}
	return s
}

// check validates a header that was read.
func (h *Header) check() error {
	switch {
	case h.Version != version:
		return corrupt("version %d: this program reads version %d", h.Version, version)
	case h.Workers < 1 || h.Workers > MaxWorkers || len(h.Groups) > MaxGroups || h.Workers*len(h.Groups) > MaxShares:
		return corrupt("%d workers and %d groups: at most %d and %d, and %d as a product", h.Workers, len(h.Groups), MaxWorkers,
			MaxGroups, MaxShares)
	case len(h.Histogram) != h.Workers:
		return corrupt("a histogram of %d workers, of %d", len(h.Histogram), h.Workers)
	}
	if err := h.sizes().Check(); err != nil {
		return corrupt("%v", err)
	}
	if n := h.sizes().Total(); n != h.Rows {
		return corrupt("groups of %d rows, of %d", n, h.Rows)
	}
	shares := make([]uint64, len(h.Groups))
	for w, share := range h.Histogram {
		if len(share) != len(h.Groups) {
			return corrupt("a histogram of %d groups, of %d", len(share), len(h.Groups))
		}
		for g, n := range share {
			size := h.Groups[g].Rows
			if n > size || h.Groups[g].Everyone && n != size {
				return corrupt("worker %d has %d of the %d rows of group %q", w, n, size, h.Groups[g].Name)
			}
			shares[g] += n
		}
	}
	for g, group := range h.Groups {
		if group.Rows == 0 || !group.Everyone && shares[g] != group.Rows {
			return corrupt("workers have %d of the %d rows of group %q", shares[g], group.Rows, group.Name)
		}
	}
	return nil
}

// Manifest is an open manifest. It may be used from several goroutines.
type Manifest struct {
	header   Header
	digest   [sha256.Size]byte
	file     *os.File
	archive  *zip.Reader
	elements [byShard + 1]int64 // where the elements of each array begin in the file
	groups   []uint64           // where a group begins in by_group
	sections []uint64           // where a worker's share of a group begins in by_shard, by worker and group
}

// Open opens a manifest. It reads no rows.
func Open(path string) (*Manifest, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	m := &Manifest{file: f}
	if err := m.open(); err != nil {
		return nil, errors.Join(m.named(err), f.Close())
	}
	return m, nil
}

func (m *Manifest) named(err error) error { return fmt.Errorf("manifest %s: %w", m.file.Name(), err) }

func (m *Manifest) open() error {
	info, err := m.file.Stat()
	if err != nil {
		return err
	}
	if m.archive, err = zip.NewReader(m.file, info.Size()); err != nil {
		return corrupt("%v; rackweave data shard makes manifests", err)
	}
	members := make(map[string]*zip.File)
	for _, f := range m.archive.File {
		members[f.Name] = f
	}
	head := members[headerFile]
	if head == nil || head.UncompressedSize64 > maxHeader {
		return corrupt("without a manifest.json of at most %d bytes; rackweave data shard makes manifests", maxHeader)
	}
	var text bytes.Buffer
	if err := copyMember(&text, head); err != nil {
		return err
	}
	if err := json.Unmarshal(text.Bytes(), &m.header); err != nil {
		return corrupt("manifest.json: %v", err)
	}
	if err := m.header.check(); err != nil {
		return err
	}
	for a, name := range arrays {
		f, head := members[name], m.header.array(a)
		size := uint64(len(head.Bytes())) + head.Elems()*uint64(head.Size)
		if f == nil || f.Method != zip.Store || f.UncompressedSize64 != size || f.CompressedSize64 != size {
			return corrupt("without an uncompressed %s of %d bytes", name, size)
		}
		at, err := f.DataOffset()
		if err != nil {
			return corrupt("%s: %v", name, err)
		}
		got := make([]byte, len(head.Bytes()))
		if _, err := m.file.ReadAt(got, at); err != nil || !bytes.Equal(got, head.Bytes()) {
			return corrupt("%s begins with %.100q, not with %q", name, got, head.Bytes())
		}
		m.elements[a] = at + int64(len(got))
		fmt.Fprintf(&text, " %d", f.CRC32)
	}
	m.digest = sha256.Sum256(text.Bytes())
	m.index()
	return nil
}

// copyMember copies a member, and checks its sum.
func copyMember(to io.Writer, f *zip.File) error {
	r, err := f.Open()
	if err == nil {
		_, err = io.Copy(to, r)
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		return corrupt("%s: %v", f.Name, err)
	}
	return nil
}

func (m *Manifest) index() {
	next := uint64(0)
	for _, g := range m.header.Groups {
		m.groups = append(m.groups, next)
		next += g.Rows
	}
	next = 0
	for _, share := range m.header.Histogram {
		for g, n := range share {
			m.sections = append(m.sections, next)
			if !m.header.Groups[g].Everyone {
				next += n
			}
		}
	}
}

// Header returns the header, which the caller leaves as it is.
func (m *Manifest) Header() *Header { return &m.header }

// Digest identifies the division and the input: it is the SHA-256 of the header and the arrays' checksums.
func (m *Manifest) Digest() [32]byte { return m.digest }

// Sizes returns the rows of each group.
func (m *Manifest) Sizes() data.Sizes { return m.header.sizes() }

// ShardSizes returns the rows that a worker has of each group. It panics on a worker that the header does not have.
func (m *Manifest) ShardSizes(worker int) data.Sizes { return slices.Clone(m.header.Histogram[worker]) }

// Row returns the number of a row.
func (m *Manifest) Row(p data.Place) (uint64, error) {
	if p.Group < 0 || p.Group >= len(m.groups) || p.Index >= m.header.Groups[p.Group].Rows {
		return 0, fmt.Errorf("row %d of group %d: the manifest has %d groups, and row %[1]d is not in it", p.Index, p.Group, len(m.groups))
	}
	return m.at(byGroup, m.groups[p.Group]+p.Index)
}

// ShardRow returns the number of a row of a worker's shard: p counts the rows that the worker has.
func (m *Manifest) ShardRow(worker int, p data.Place) (uint64, error) {
	if worker < 0 || worker >= m.header.Workers {
		return 0, fmt.Errorf("worker %d: the manifest has shards for %d", worker, m.header.Workers)
	}
	if p.Group < 0 || p.Group >= len(m.groups) || p.Index >= m.header.Histogram[worker][p.Group] {
		return 0, fmt.Errorf("row %d of group %d is not in the shard of worker %d", p.Index, p.Group, worker)
	}
	if m.header.Groups[p.Group].Everyone {
		return m.Row(p)
	}
	return m.at(byShard, m.sections[worker*len(m.groups)+p.Group]+p.Index)
}

// at reads an element of by_group or by_shard.
func (m *Manifest) at(a int, i uint64) (uint64, error) {
	var raw [8]byte
	wide := m.header.wide()
	if _, err := m.file.ReadAt(raw[:wide], m.elements[a]+int64(i)*int64(wide)); err != nil {
		return 0, m.named(err)
	}
	row := binary.LittleEndian.Uint64(raw[:])
	if row >= m.header.Rows {
		return 0, m.named(corrupt("row %d of %d", row, m.header.Rows))
	}
	return row, nil
}

// Verify reads the whole file, and returns an error if anything in it has changed.
func (m *Manifest) Verify() error {
	for _, f := range m.archive.File {
		if err := copyMember(io.Discard, f); err != nil {
			return m.named(err)
		}
	}
	return nil
}

// Close closes the file.
func (m *Manifest) Close() error { return m.file.Close() }
