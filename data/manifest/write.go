package manifest

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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
	// Step is called often by Finish, with the part that is done, of 1. An error ends the work.
	Step func(done float64) error

	path  string
	ids   *os.File // u16, by row
	buf   *bufio.Writer
	sizes []uint64 // by id
	rows  uint64
}

// NewWriter begins a manifest. It refuses a path that names anything but a regular file, because Finish puts a new file in
// its place: a device would be lost to the whole machine.
func NewWriter(path string) (*Writer, error) {
	if old, err := os.Lstat(path); err == nil && !old.Mode().IsRegular() {
		return nil, fmt.Errorf("%s exists, and is not a regular file but %s: name another file", path, old.Mode())
	}
	w := &Writer{path: path, Step: func(float64) error { return nil }}
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
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("manifest %s: no folder %s: make it first", w.path, filepath.Dir(w.path))
	} else if err != nil {
		return nil, fmt.Errorf("a temporary file beside the manifest: %w", err)
	}
	return f, os.Remove(f.Name())
}

// Add adds the next row. Groups are numbered as the caller likes, below MaxGroups.
func (w *Writer) Add(group int) error {
	if group < 0 || group >= MaxGroups {
		return fmt.Errorf("row %d is in group %d of at most %d. Are the groups classes?", w.rows, group, MaxGroups)
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
	d := &division{Writer: w, h: h, order: w.number(h, names)}
	var err error
	if d.worker, err = h.dealing(); err != nil {
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
	d.zip = zip.NewWriter(buf)
	if err = d.write(); err == nil {
		err = errors.Join(d.zip.Close(), buf.Flush())
	}
	if err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		err = fmt.Errorf("manifest %s: %w", w.path, err)
	}
	return err
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
	value := func(s string) float64 {
		if x, err := strconv.ParseFloat(s, 64); err == nil {
			return x
		}
		return math.Inf(1)
	}
	return cmp.Or(cmp.Compare(value(a), value(b)), cmp.Compare(a, b))
}

var starts = map[string]data.Start{"rotate": data.Rotate, "first": data.First}

// CheckHow checks How and Start. Its errors begin with the name of the one or the other.
func (h *Header) CheckHow() error {
	if _, ok := starts[h.Start]; !ok {
		return fmt.Errorf("start %q: use rotate or first", h.Start)
	}
	if !slices.Contains([]string{"random", "mod", "stratified", "aware"}, h.How) {
		return fmt.Errorf("how %q: use random, mod, stratified or aware", h.How)
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

// division writes a manifest whose rows all have a group.
type division struct {
	*Writer
	h      *Header
	order  []uint16 // of groups, by id
	worker func(row uint64, p data.Place) int
	zip    *zip.Writer
	passes float64 // that have ended
}

// each calls f with the rows in ascending order.
func (d *division) each(f func(row uint64, p data.Place) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(d.ids, 0, 2*int64(d.rows)), 64<<10)
	next := make([]uint64, len(d.h.Groups))
	var id [2]byte
	for row := range d.rows {
		if row%(1<<16) == 0 {
			all := float64(1 + len(arrays))
			if err := d.Step((d.passes + float64(row)/float64(d.rows)) / all); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(r, id[:]); err != nil {
			return err
		}
		g := d.order[binary.LittleEndian.Uint16(id[:])]
		if err := f(row, data.Place{Group: int(g), Index: next[g]}); err != nil {
			return err
		}
		next[g]++
	}
	d.passes++
	return nil
}

func (d *division) write() error {
	h, groups := d.h, len(d.h.Groups)
	shares := make([]uint64, h.Workers*groups) // of one worker alone
	err := d.each(func(row uint64, p data.Place) error {
		if w := d.worker(row, p); w == data.Everyone {
			h.Groups[p.Group].Everyone = true
		} else {
			shares[w*groups+p.Group]++
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.Histogram = nil
	for share := range slices.Chunk(slices.Clone(shares), groups) {
		for g, group := range h.Groups {
			if group.Everyone {
				share[g] = group.Rows
			}
		}
		h.Histogram = append(h.Histogram, share)
	}
	text, err := json.Marshal(h)
	if err == nil && len(text) > maxHeader {
		err = fmt.Errorf("a header of %d bytes: at most %d. Name a column with fewer values, or shorter ones", len(text), maxHeader)
	}
	if err == nil {
		err = d.member(headerFile, bytes.NewReader(text))
	}
	for a, sorted := range []struct {
		sizes []uint64 // of sections
		at    func(row uint64, p data.Place) (section int, value uint64)
	}{
		groupArray:  {[]uint64{h.Rows}, func(_ uint64, p data.Place) (int, uint64) { return 0, uint64(p.Group) }},
		workerArray: {[]uint64{h.Rows}, func(row uint64, p data.Place) (int, uint64) { return 0, uint64(d.worker(row, p)) & everyone }},
		byGroup:     {h.sizes(), func(row uint64, p data.Place) (int, uint64) { return p.Group, row }},
		byShard: {shares, func(row uint64, p data.Place) (int, uint64) {
			if w := d.worker(row, p); w != data.Everyone {
				return w*groups + p.Group, row
			}
			return -1, row
		}},
	} {
		if err == nil {
			err = d.array(a, sorted.sizes, sorted.at)
		}
	}
	return err
}

// array writes an array of a value of each row, sorted into sections. Rows with a section below 0 are left out.
func (d *division) array(a int, sizes []uint64, at func(row uint64, p data.Place) (section int, value uint64)) error {
	file, err := d.scratch()
	if err != nil {
		return err
	}
	defer file.Close()
	head, end := d.h.array(a), int64(0)
	sections := make([]*bufio.Writer, len(sizes))
	for i, n := range sizes {
		sections[i] = bufio.NewWriterSize(io.NewOffsetWriter(file, end), min(64<<10, max(minSection, sectionsBytes/len(sizes))))
		end += int64(n) * int64(head.Size)
	}
	var raw [8]byte
	err = d.each(func(row uint64, p data.Place) error {
		i, value := at(row, p)
		if i < 0 {
			return nil
		}
		binary.LittleEndian.PutUint64(raw[:], value)
		_, err := sections[i].Write(raw[:head.Size])
		return err
	})
	for _, s := range sections {
		err = errors.Join(err, s.Flush())
	}
	if err != nil {
		return err
	}
	return d.member(arrays[a], io.MultiReader(bytes.NewReader(head.Bytes()), io.NewSectionReader(file, 0, end)))
}

// member adds a member to the archive.
func (d *division) member(name string, content io.Reader) error {
	to, err := d.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	if err == nil {
		_, err = io.Copy(to, content)
	}
	return err
}
