package manifest

import (
	"archive/zip"
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/google/renameio/v2"

	"github.com/rackweave/rackweave/data"
)

// sectionsBytes is the memory of all sections of an array that are written side by side, if each has minSection or more of it.
const (
	sectionsBytes = 16 << 20
	minSection    = 64
)

// Writer writes a manifest. Its memory does not grow with the number of rows: they are kept in unnamed files beside the manifest.
type Writer struct {
	path  string
	ids   *os.File // u16, by row
	buf   *bufio.Writer
	sizes []uint64 // by id
	rows  uint64
}

// NewWriter begins a manifest.
func NewWriter(path string) (*Writer, error) {
	w := &Writer{path: path}
	var err error
	if w.ids, err = w.scratch(); err != nil {
		return nil, err
	}
	w.buf = bufio.NewWriterSize(w.ids, 64<<10)
	return w, nil
}

// scratch opens a file that has no name: the kernel frees it with the process. TMPDIR may be small, so it lies by the manifest.
func (w *Writer) scratch() (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(w.path), ".rackweave-shard-")
	if err != nil {
		return nil, fmt.Errorf("a temporary file beside the manifest: %w", err)
	}
	return f, os.Remove(f.Name())
}

// Add adds the next row. Groups are numbered as the caller likes, below MaxGroups.
func (w *Writer) Add(group int) error {
	if group < 0 || group >= MaxGroups {
		return fmt.Errorf("row %d is in group %d: there can be %d", w.rows, group, MaxGroups)
	}
	if group >= len(w.sizes) {
		w.sizes = append(w.sizes, make([]uint64, group+1-len(w.sizes))...)
	}
	w.sizes[group]++
	w.rows++
	_, err := w.buf.Write([]byte{byte(group), byte(group >> 8)})
	return err
}

// Rows returns the number of rows that were added.
func (w *Writer) Rows() uint64 { return w.rows }

// Close frees what the writer holds. It writes no manifest.
func (w *Writer) Close() error { return w.ids.Close() }

// Finish divides the rows and writes the manifest. Of the header the caller sets Input, SHA256, How, Start, Seed, Workers,
// Label and Axes; Finish sets the others. names are the groups', by the number that Add had; groups without rows are left out.
//
// With random and mod, groups do not matter for the division.
func (w *Writer) Finish(h *Header, names []string) error {
	order := w.number(h, names)
	worker, err := h.dealing()
	if err != nil {
		return err
	}
	if err := w.buf.Flush(); err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(w.path, renameio.WithTempDir(filepath.Dir(w.path)), renameio.WithPermissions(0o666))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	buf := bufio.NewWriterSize(f, 1<<20)
	d := &division{w, h, order, worker, zip.NewWriter(buf), sha256.New()}
	if err := d.write(); err != nil {
		return fmt.Errorf("manifest %s: %w", w.path, err)
	}
	if err := errors.Join(d.zip.Close(), buf.Flush()); err != nil {
		return fmt.Errorf("manifest %s: %w", w.path, err)
	}
	return f.CloseAtomicallyReplace()
}

// number sorts the groups that have rows, and returns their numbers by id.
func (w *Writer) number(h *Header, names []string) (order []uint16) {
	var ids []int
	for id, n := range w.sizes {
		if n > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int) int { return natural(names[a], names[b]) })
	h.Version, h.Rows, h.Groups = version, w.rows, nil
	order = make([]uint16, len(w.sizes))
	for g, id := range ids {
		order[id] = uint16(g)
		h.Groups = append(h.Groups, Group{Name: names[id], Rows: w.sizes[id]})
	}
	return order
}

// natural compares numbers by value, and before text.
func natural(a, b string) int {
	x, notX := strconv.ParseFloat(a, 64)
	y, notY := strconv.ParseFloat(b, 64)
	switch {
	case notX == nil && notY == nil && x != y:
		return cmp.Compare(x, y)
	case (notX == nil) != (notY == nil):
		if notX == nil {
			return -1
		}
		return 1
	}
	return cmp.Compare(a, b)
}

var starts = map[string]data.Start{"rotate": data.Rotate, "first": data.First}

// CheckHow checks How and Start.
func (h *Header) CheckHow() error {
	if _, ok := starts[h.Start]; !ok {
		return fmt.Errorf("start %q: use rotate or first", h.Start)
	}
	if !slices.Contains([]string{"random", "mod", "stratified", "aware"}, h.How) {
		return fmt.Errorf("a division %q: use random, mod, stratified or aware", h.How)
	}
	return nil
}

// dealing returns the worker of each row, or data.Everyone, after it has checked the header.
func (h *Header) dealing() (func(row uint64, p data.Place) int, error) {
	if err := h.CheckHow(); err != nil {
		return nil, err
	}
	if shares := h.Workers * len(h.Groups); h.Workers > MaxWorkers || shares > MaxShares {
		return nil, fmt.Errorf("%d groups for %d workers: at most %d workers, and %d as a product. Is %q a column of classes?",
			len(h.Groups), h.Workers, MaxWorkers, MaxShares, h.Label)
	}
	sizes := h.sizes()
	if h.How == "random" || h.How == "mod" {
		sizes = data.Sizes{h.Rows}
	}
	d, err := data.NewDeal(sizes, h.Workers, starts[h.Start], h.How == "aware", h.Seed)
	switch {
	case err != nil:
		return nil, err
	case h.How == "random":
		return func(row uint64, _ data.Place) int { return d.Worker(data.Place{Index: row}) }, nil
	case h.How == "mod":
		return func(row uint64, _ data.Place) int { return int(row % uint64(h.Workers)) }, nil
	}
	return func(_ uint64, p data.Place) int { return d.Worker(p) }, nil
}

// division is a manifest that is written.
type division struct {
	*Writer
	h      *Header
	order  []uint16
	worker func(row uint64, p data.Place) int
	zip    *zip.Writer
	sum    hash.Hash // of group and worker
}

// each calls f with the rows in ascending order.
func (d *division) each(f func(row uint64, p data.Place) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(d.ids, 0, 2*int64(d.rows)), 64<<10)
	next := make([]uint64, len(d.h.Groups))
	var id [2]byte
	for row := range d.rows {
		if _, err := io.ReadFull(r, id[:]); err != nil {
			return err
		}
		g := d.order[binary.LittleEndian.Uint16(id[:])]
		if err := f(row, data.Place{Group: int(g), Index: next[g]}); err != nil {
			return err
		}
		next[g]++
	}
	return nil
}

func (d *division) write() error {
	h := d.h
	h.Histogram = make([][]uint64, h.Workers)
	for w := range h.Histogram {
		h.Histogram[w] = make([]uint64, len(h.Groups))
	}
	err := d.column(groupArray, func(_ uint64, p data.Place) int { return p.Group })
	if err != nil {
		return err
	}
	shares := make([]uint64, h.Workers*len(h.Groups)) // of one worker alone
	share := func(row uint64, p data.Place) int {
		if w := d.worker(row, p); w != data.Everyone {
			return w*len(h.Groups) + p.Group
		}
		return -1
	}
	err = d.column(workerArray, func(row uint64, p data.Place) int {
		i := share(row, p)
		if i < 0 {
			h.Groups[p.Group].Everyone = true
			return everyone
		}
		shares[i]++
		return i / len(h.Groups)
	})
	if err != nil {
		return err
	}
	for i, n := range shares {
		w, g := i/len(h.Groups), i%len(h.Groups)
		if h.Histogram[w][g] = n; h.Groups[g].Everyone {
			h.Histogram[w][g] = h.Groups[g].Rows
		}
	}
	h.Division = hex.EncodeToString(d.sum.Sum(nil))
	if err := d.sorted(byGroup, h.sizes(), func(_ uint64, p data.Place) int { return p.Group }); err != nil {
		return err
	}
	if err := d.sorted(byShard, shares, share); err != nil {
		return err
	}
	text, err := json.Marshal(h)
	if err == nil && len(text) > maxHeader {
		err = fmt.Errorf("a header of %d bytes: at most %d. Name a column with fewer values, or shorter ones", len(text), maxHeader)
	}
	if err != nil {
		return err
	}
	to, err := d.zip.CreateHeader(&zip.FileHeader{Name: headerFile, Method: zip.Store})
	if err == nil {
		_, err = to.Write(text)
	}
	return err
}

// member begins a member of the archive with the header of an array.
func (d *division) member(a array) (io.Writer, error) {
	name, head := d.h.array(a)
	to, err := d.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	if err == nil {
		_, err = to.Write(head.Bytes())
	}
	return to, err
}

// column writes a number of each row.
func (d *division) column(a array, value func(row uint64, p data.Place) int) error {
	to, err := d.member(a)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(io.MultiWriter(to, d.sum), 64<<10)
	err = d.each(func(row uint64, p data.Place) error {
		v := value(row, p)
		_, err := buf.Write([]byte{byte(v), byte(v >> 8)})
		return err
	})
	return errors.Join(err, buf.Flush())
}

// sorted writes the rows sorted into sections of given sizes. It leaves out rows without a section.
func (d *division) sorted(a array, sizes []uint64, section func(row uint64, p data.Place) int) error {
	file, err := d.scratch()
	if err != nil {
		return err
	}
	defer file.Close()
	sections, at := make([]*bufio.Writer, len(sizes)), int64(0)
	for i, n := range sizes {
		sections[i] = bufio.NewWriterSize(io.NewOffsetWriter(file, at), min(64<<10, max(minSection, sectionsBytes/len(sizes))))
		at += int64(n) * int64(d.h.wide())
	}
	var raw [8]byte
	err = d.each(func(row uint64, p data.Place) error {
		i := section(row, p)
		if i < 0 {
			return nil
		}
		binary.LittleEndian.PutUint64(raw[:], row)
		_, err := sections[i].Write(raw[:d.h.wide()])
		return err
	})
	for _, s := range sections {
		err = errors.Join(err, s.Flush())
	}
	if err != nil {
		return err
	}
	to, err := d.member(a)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.NewSectionReader(file, 0, at))
	return err
}
