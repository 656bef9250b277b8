package manifest

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/npy"
)

// write divides rows, given the group of each, and opens the manifest.
func write(t interface{ Fatal(...any) }, path string, ids []int, names []string, h Header) *Manifest {
	w, err := NewWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if err := w.Add(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Finish(&h, names), w.Close()); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// shard returns the rows of a worker, by group.
func shard(t interface{ Fatal(...any) }, m *Manifest, worker int) (rows [][]uint64) {
	for g, n := range m.ShardSizes(worker) {
		rows = append(rows, nil)
		for i := range n {
			row, err := m.ShardRow(worker, data.Place{Group: g, Index: i})
			if err != nil {
				t.Fatal(err)
			}
			rows[g] = append(rows[g], row)
		}
	}
	return rows
}

var names = []string{"10", "9", "b", "a", "-3"}
var sorted = []string{"-3", "9", "10", "a", "b"}

// Rows are found again by their group and by their worker, in ascending order, whatever divides them.
func TestManifestsHaveTheDivision(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.IntRange(0, len(names)-1), 1, 20).Draw(t, "ids")
		h := Header{Input: "in.csv", Start: rapid.SampledFrom([]string{"rotate", "first"}).Draw(t, "start"),
			How: rapid.SampledFrom([]string{"random", "mod", "stratified", "aware"}).Draw(t, "how"), Seed: rapid.Uint64().Draw(t, "seed"),
			Workers: rapid.IntRange(1, min(6, len(ids))).Draw(t, "workers")}
		m := write(t, filepath.Join(dir, "m"), ids, names, h)
		defer m.Close()
		if err := m.Verify(); err != nil {
			t.Fatal(err)
		}
		byGroup := make(map[string][]uint64)
		for row, id := range ids {
			byGroup[names[id]] = append(byGroup[names[id]], uint64(row))
		}
		before := -1
		for g, group := range m.Header().Groups {
			if at := slices.Index(sorted, group.Name); at <= before {
				t.Fatalf("group %q is at %d", group.Name, g)
			} else {
				before = at
			}
			want := byGroup[group.Name]
			delete(byGroup, group.Name)
			if uint64(len(want)) != group.Rows || m.Sizes()[g] != group.Rows {
				t.Fatalf("group %q has %d rows, not %d", group.Name, group.Rows, len(want))
			}
			for i, row := range want {
				if got, err := m.Row(data.Place{Group: g, Index: uint64(i)}); err != nil || got != row {
					t.Fatalf("row %d of group %q is %d, not %d: %v", i, group.Name, got, row, err)
				}
			}
			if sparse := h.How == "aware" && len(want) < h.Workers; sparse != group.Everyone {
				t.Fatalf("group %q of %d rows: everyone %v", group.Name, len(want), group.Everyone)
			}
		}
		if len(byGroup) > 0 {
			t.Fatalf("no groups %v", byGroup)
		}
		checkShards(t, m, ids)
	})
}

// checkShards checks that shards are a division of the rows, and even where that is promised.
func checkShards(t *rapid.T, m *Manifest, ids []int) {
	h := m.Header()
	var all []uint64
	least, most := make([]int, len(h.Groups)), make([]int, len(h.Groups))
	for w := range h.Workers {
		for g, rows := range shard(t, m, w) {
			if !slices.IsSorted(rows) {
				t.Fatalf("worker %d has %v of group %d", w, rows, g)
			}
			for _, row := range rows {
				if names[ids[row]] != h.Groups[g].Name {
					t.Fatalf("worker %d has row %d in group %q", w, row, h.Groups[g].Name)
				}
				if h.How == "mod" && row%uint64(h.Workers) != uint64(w) {
					t.Fatalf("worker %d of %d has row %d", w, h.Workers, row)
				}
			}
			if n := len(rows); w == 0 {
				least[g], most[g] = n, n
			} else {
				least[g], most[g] = min(n, least[g]), max(n, most[g])
			}
			if w == 0 || !h.Groups[g].Everyone {
				all = append(all, rows...)
			}
		}
	}
	slices.Sort(all)
	for row := range ids {
		if row >= len(all) || all[row] != uint64(row) {
			t.Fatalf("the shards have the rows %v, of %d", all, len(ids))
		}
	}
	for g := range h.Groups {
		if (h.How == "stratified" || h.How == "aware") && most[g]-least[g] > 1 {
			t.Fatalf("workers have %d to %d rows of group %d", least[g], most[g], g)
		}
	}
}

// many returns a manifest of a few thousand rows.
func many(t interface{ Fatal(...any) }, path string, h Header) *Manifest {
	ids := make([]int, 5000)
	for i := range ids {
		if ids[i] = i * i % 7 % 4; i == 77 || i == 4000 {
			ids[i] = 4
		}
	}
	return write(t, path, ids, names, h)
}

var aware = Header{Input: "in.csv", SHA256: "abc", How: "aware", Start: "rotate", Seed: 3, Workers: 4}

func TestDigestsIdentifyTheDivision(t *testing.T) {
	dir := t.TempDir()
	seen := map[[32]byte]string{}
	again := many(t, filepath.Join(dir, "again"), aware)
	defer again.Close()
	for i, change := range []func(*Header){
		func(*Header) {}, func(h *Header) { h.Seed++ }, func(h *Header) { h.Workers++ }, func(h *Header) { h.How = "stratified" },
		func(h *Header) { h.Start = "first" }, func(h *Header) { h.SHA256 = "abd" },
	} {
		h := aware
		change(&h)
		m := many(t, filepath.Join(dir, "m"), h)
		defer m.Close()
		if other, ok := seen[m.Digest()]; ok || (m.Digest() == again.Digest()) != (i == 0) {
			t.Errorf("the digest of %+v is that of %s", h, other)
		}
		seen[m.Digest()] = fmt.Sprintf("%+v", h)
	}
}

// Members are arrays that other programs read: the header, the elements and the order of bytes are numpy's.
func TestMembersAreArrays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	m := many(t, path, aware)
	defer m.Close()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for i, f := range z.File[1:] {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		h, err := npy.Read(r)
		if err != nil {
			t.Fatal(f.Name, err)
		}
		raw, err := io.ReadAll(r)
		if err != nil || uint64(len(raw)) != h.Elems()*uint64(h.Size) {
			t.Fatalf("%s has %d bytes and %+v: %v", f.Name, len(raw), h, err)
		}
		if want := []uint64{5000, 5000, 5000, 4998}[i]; h.Elems() != want {
			t.Errorf("%s has %d elements, not %d", f.Name, h.Elems(), want)
		}
		switch v := int(binary.LittleEndian.Uint16(raw[2*77:])); f.Name {
		case "group.npy":
			if m.Header().Groups[v].Name != "-3" {
				t.Errorf("row 77 is in group %d", v)
			}
		case "worker.npy":
			if v != everyone {
				t.Errorf("row 77 belongs to worker %d", v)
			}
		}
	}
}

func TestDamagedManifestsAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	many(t, path, aware).Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "damaged")
	verify := func(raw []byte) error {
		if err := os.WriteFile(damaged, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(damaged)
		if err != nil {
			return err
		}
		defer m.Close()
		return m.Verify()
	}
	for n := 0; n < len(whole); n += 1 + n/9 {
		if err := verify(whole[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for _, name := range []string{"group", "worker", "by_group", "by_shard"} {
		raw := slices.Clone(whole)
		raw[strings.Index(string(raw), name+".npy")+500] ^= 4
		if err := verify(raw); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("with a changed %s: %v", name, err)
		}
	}
	for _, foreign := range []string{"", "label,x\n1,2\n", "PK\x05\x06" + strings.Repeat("\x00", 18)} {
		if err := verify([]byte(foreign)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "rackweave data shard") {
			t.Errorf("%q: %v", foreign, err)
		}
	}
	if _, err := Open(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestRowsBesideAManifestAreRefused(t *testing.T) {
	m := many(t, filepath.Join(t.TempDir(), "m"), aware)
	defer m.Close()
	for _, p := range []data.Place{{Group: -1}, {Group: 5}, {Group: 0, Index: m.Sizes()[0]}, {Group: 4, Index: 1 << 62}} {
		if row, err := m.Row(p); err == nil {
			t.Errorf("%v is row %d", p, row)
		}
		if row, err := m.ShardRow(0, p); err == nil {
			t.Errorf("%v of worker 0 is row %d", p, row)
		}
	}
	for _, w := range []int{-1, 4} {
		if row, err := m.ShardRow(w, data.Place{}); err == nil {
			t.Errorf("worker %d has row %d", w, row)
		}
	}
}

func TestDivisionsThatCannotBeLeaveWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, h := range map[string]Header{
		"6 workers for 5 rows":      {How: "random", Start: "rotate", Workers: 6},
		"0 workers":                 {How: "mod", Start: "rotate"},
		"at most 65535 workers":     {How: "mod", Start: "rotate", Workers: 1 << 16},
		`how "sorted"`:              {How: "sorted", Start: "rotate", Workers: 2},
		`start "last"`:              {How: "random", Start: "last", Workers: 2},
		"without a row":             {How: "random", Start: "rotate", Workers: 1},
		`Is "id" a column of class`: {How: "stratified", Start: "rotate", Workers: 65535, Label: "id"},
	} {
		w, err := NewWriter(path)
		if err != nil {
			t.Fatal(err)
		}
		ids := []int{0, 1, 0, 3, 3}
		switch {
		case want == "without a row":
			ids = nil
		case h.Label != "":
			for i := range 70 {
				ids = append(ids, i)
			}
		}
		for _, id := range ids {
			if err := w.Add(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Add(MaxGroups); err == nil {
			t.Error("a group of a number too large")
		}
		if err := w.Finish(&h, make([]string, 70)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, which does not have %q", h, err, want)
		}
		w.Close()
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("files %v are left: %v", left, err)
	}
	if text, err := os.ReadFile(path); string(text) != "before" {
		t.Errorf("%.100q is left: %v", text, err)
	}
}

func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "m")
	write(f, path, []int{0, 1, 1, 0, 2, 1}, names, Header{How: "aware", Start: "rotate", Workers: 2}).Close()
	raw, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "m")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err != nil {
			return
		}
		defer m.Close()
		_ = m.Verify()
		for g, n := range m.Sizes() {
			for _, i := range []uint64{0, n - 1, n} {
				if row, err := m.Row(data.Place{Group: g, Index: i}); err == nil && (row >= m.Header().Rows || i == n) {
					t.Fatalf("row %d of group %d is %d, of %d", i, g, row, m.Header().Rows)
				}
				for w := range m.Header().Workers {
					if row, err := m.ShardRow(w, data.Place{Group: g, Index: i}); err == nil && row >= m.Header().Rows {
						t.Fatalf("row %d of group %d of worker %d is %d", i, g, w, row)
					}
				}
			}
		}
	})
}

func TestWriterRefusesWhatIsNotARegularFile(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink(pipe, link)); err != nil {
		t.Fatal(err)
	}
	_, err := NewWriter(filepath.Join(dir, "none", "m"))
	if err == nil || !strings.HasSuffix(err.Error(), dir+"/none: make it first") {
		t.Errorf("a folder that is missing: %v", err)
	}
	for _, path := range []string{pipe, link, dir} {
		if _, err := NewWriter(path); err == nil || !strings.Contains(err.Error(), path+" exists, and is not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A hundred million rows, if RACKWEAVE_LONG is set: opened and read at a place within a second.
func BenchmarkOpen(b *testing.B) {
	rows := 1000000
	if os.Getenv("RACKWEAVE_LONG") != "" {
		rows *= 100
	}
	b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
		path := filepath.Join(b.TempDir(), "m")
		w, err := NewWriter(path)
		if err != nil {
			b.Fatal(err)
		}
		defer w.Close()
		for i := range rows {
			if err := w.Add(i % 10); err != nil {
				b.Fatal(err)
			}
		}
		h := Header{How: "stratified", Start: "rotate", Workers: 8}
		if err := w.Finish(&h, strings.Split("0123456789", "")); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			m, err := Open(path)
			if err != nil {
				b.Fatal(err)
			}
			o := data.NewOrder(m.Sizes(), nil, 1, 1)
			o.Seek(o.Len() / 3)
			for range 1000 {
				p, _ := o.Next()
				if _, err := m.Row(p); err != nil {
					b.Fatal(err)
				}
			}
			m.Close()
		}
	})
}
