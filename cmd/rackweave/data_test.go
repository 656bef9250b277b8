package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/manifest"
)

// threes is CSV of rows with a class and two features, in clusters far apart. The last three rows are a group of their own.
func threes(rows int) string {
	var b strings.Builder
	b.WriteString("class,x,y\n")
	for i := range rows {
		x, y := i%3*100+i%7, i%5
		if i >= rows-3 {
			x, y = 5000, 5000+i%2
		}
		fmt.Fprintf(&b, "c%d,%d,%d\n", i%2, x, y)
	}
	return b.String()
}

// shardOf divides rows, and returns the manifest as JSON.
func shardOf(t *testing.T, args ...string) (h manifest.Header) {
	t.Helper()
	out, err := run(t, append([]string{"data", "shard", "--json"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &h)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestShardsHaveEvenSharesOfEachGroup(t *testing.T) {
	in := file(t, "in.csv", threes(103))
	groups := file(t, "groups.txt", strings.Repeat("a\nb\nc\n", 34)+"a\n")
	for _, c := range []struct {
		args   []string
		groups int
		even   bool // in each group, otherwise of all rows
	}{
		{[]string{"--label", "class"}, 2, true}, {[]string{"--how", "aware", "--label", "class"}, 4, true},
		{[]string{"--how", "aware", "--k", "4", "--features", "x,y", "--pca", "2"}, 4, true},
		{[]string{"--groups", groups, "--seed", "8"}, 3, true}, {[]string{"--groups", groups, "--how", "aware"}, 3, true},
		{[]string{"--how", "random", "--label", "class"}, 2, false}, {[]string{"--how", "mod"}, 1, true},
	} {
		h := shardOf(t, append([]string{in, "--workers", "4"}, c.args...)...)
		if h.Rows != 103 || len(h.Groups) != c.groups || h.Input != "in.csv" || len(h.Histogram) != 4 {
			t.Fatalf("%q: %+v", c.args, h)
		}
		totals := make([]uint64, 4)
		for g, group := range h.Groups {
			least, most := group.Rows, uint64(0)
			for w, share := range h.Histogram {
				least, most = min(least, share[g]), max(most, share[g])
				if !group.Everyone {
					totals[w] += share[g]
				}
			}
			if c.even && most-least > 1 {
				t.Errorf("%q: workers have %d to %d rows of group %q", c.args, least, most, group.Name)
			}
			if c.args[1] == "aware" && c.args[0] == "--how" && group.Everyone != (group.Rows == 3) {
				t.Errorf("%q: group %+v", c.args, group)
			}
		}
		if most, least := totals[0], totals[3]; most-least > 1 {
			t.Errorf("%q: workers have %v rows", c.args, totals)
		}
	}
}

func TestShardsOfOneSeedAreTheSame(t *testing.T) {
	in := file(t, "in.csv", threes(500))
	var before []byte
	for i, seed := range []string{"1", "1", "2"} {
		shardOf(t, in, "--workers", "3", "--how", "aware", "--k", "4", "--label", "class", "--seed", seed)
		got, err := os.ReadFile(in + ".manifest")
		if err != nil || bytes.Equal(got, before) != (i == 1) {
			t.Errorf("division %d, of seed %s: the file is that of the one before: %v, %v", i, seed, bytes.Equal(got, before), err)
		}
		before = got
	}
}

func TestManifestsAreShown(t *testing.T) {
	in := file(t, "in.csv", threes(12))
	out, err := run(t, "data", "shard", in, "--workers", "5", "--how", "aware", "--k", "4", "--label", "class")
	for _, want := range []string{"12 rows of in.csv, aware", "all of them", "\n     4 ", "█"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("without %q: %v\n%s", want, err, out)
		}
	}
	out, err = run(t, "data", "show", in+".manifest", "--verify")
	if err != nil || !strings.Contains(out, "verified") || !strings.Contains(out, "digest ") {
		t.Error(err, out)
	}
	raw, err := os.ReadFile(in + ".manifest")
	if err != nil {
		t.Fatal(err)
	}
	raw[bytes.Index(raw, []byte("worker.npy"))+150] ^= 1
	if err := os.WriteFile(in+".manifest", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, []string{"data", "show", in + ".manifest", "--verify"}, "worker.npy", "checksum")
	fails(t, []string{"data", "show", in}, "rackweave data shard")
}

func TestInputsThatCannotBeDividedAreNamed(t *testing.T) {
	in := file(t, "in.csv", threes(9))
	groups := file(t, "groups.txt", "a\nb\n")
	nan := file(t, "nan.csv", "class,x\na,1\nb,nan\n")
	var numbers strings.Builder
	for i := range 70000 {
		fmt.Fprintln(&numbers, i)
	}
	many := file(t, "many.csv", "n\n"+numbers.String())
	ragged := file(t, "ragged.csv", "class,x\na,1\nb\n")
	parquetFile := parquetOf(t, t.TempDir(), 100)
	whole, err := os.ReadFile(parquetFile)
	if err != nil {
		t.Fatal(err)
	}
	short := file(t, "short.parquet", string(whole[:len(whole)/2]))
	for _, c := range []struct {
		args  string
		wants []string
	}{
		{in + " --workers 2 --label klass", []string{`no column "klass"`, `"class"`, "class, x, y"}},
		{in + " --workers 10 --label class", []string{"10 workers for 9 rows"}},
		{in + " --label class", []string{"--workers is missing", "1 to 65535"}},
		{in + " --label class --workers 0", []string{"--workers 0"}},
		{in + " --workers 2", []string{"--label COLUMN"}},
		{in + " --workers 2 --how even", []string{`--how "even"`, "stratified or aware"}},
		{in + " --workers 2 --how mod --start last", []string{`--start "last"`, "rotate or first"}},
		{in + " --workers 2 --how aware", []string{"--k"}},
		{in + " --workers 2 --how aware --k 10 --features x", []string{"10 groups of 9 rows: use 1 to 9"}},
		{in + " --workers 2 --how aware --k 2 --pca 3 --label class", []string{"3 principal axes of 2 features: use 1 to 2"}},
		{in + " --workers 2 --label class --k 2", []string{"--k, --pca and --features", "--how aware"}},
		{in + " --workers 2 --how aware --groups " + groups + " --features x", []string{"--features", "without --groups"}},
		{in + " --workers 2 --label class --groups " + groups, []string{"--label class and --groups " + groups, "give one"}},
		{many + " --workers 2 --label n", []string{"--label n has more than 65536 values: name a column of classes"}},
		{many + " --workers 2 --how aware --label n", []string{"--label n has more than 2048 values: give --k"}},
		{in + " --workers 2 --label class --out none/m", []string{"--out", "no folder none: make it first"}},
		{in + " --workers 2 --how aware --k -1 --features x", []string{"-1 groups"}},
		{in + " --workers 2 --how aware --k 2", []string{`row 0, column "class"`, "not a number", "leave the column out of --features"}},
		{in + " --workers 2 --groups " + groups, []string{"2 rows", "9 rows"}},
		{in + " --workers 2 --label class --out " + in, []string{"--out " + in}},
		{in + " --workers 2 --label class --out " + filepath.Dir(in), []string{"--out", "not a regular file", "drwx"}},
		{nan + " --workers 2 --how aware --k 2 --label class", []string{`row 1, column "x": it is NaN`}},
		{ragged + " --workers 2 --label class", []string{"line 3 has 1 fields"}},
		{file(t, "empty.csv", "") + " --workers 2 --label class", []string{"empty"}},
		{file(t, "header.csv", "class,x\n") + " --workers 2 --label class", []string{"no rows"}},
		{short + " --workers 2 --label class", []string{"short.parquet", "is the file whole?"}},
		{"nowhere.csv --workers 2 --label class", []string{"nowhere.csv"}},
	} {
		fails(t, append([]string{"data", "shard"}, strings.Fields(c.args)...), c.wants...)
	}
	if left, _ := filepath.Glob(filepath.Dir(in) + "/*"); len(left) != 1 {
		t.Errorf("files are left: %v", left)
	}
}

// Arrays with another number of rows than the label are named on standard error.
func TestArraysOfOtherRowsAreNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.npz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for name, rows := range map[string]int{"y": 3, "x": 3, "z": 5} {
		w, err := z.Create(name + ".npy")
		if err != nil {
			t.Fatal(err)
		}
		head := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }", rows)
		fmt.Fprintf(w, "\x93NUMPY\x01\x00%c%c%s%s", len(head), 0, head, make([]byte, rows))
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--label y", "left out, because the label \"y\" has 3 rows: \"z\" has 5 rows\n"},
		{"--label y --how aware --k 1", "left out, because the label \"y\" has 3 rows: \"z\" has 5 rows\n"},
		{"--label y --how aware --k 1 --features x", ""},
	} {
		var out, errs bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		cmd.SetArgs(append([]string{"data", "shard", path, "--workers", "2", "--json"}, strings.Fields(c.args)...))
		if err := cmd.ExecuteContext(t.Context()); err != nil || errs.String() != c.want || !json.Valid(out.Bytes()) {
			t.Errorf("%s: %q, not %q: %v\n%s", c.args, errs.String(), c.want, err, out.String())
		}
	}
	fails(t, strings.Fields("data shard "+path+" --workers 2 --how aware --k 1 --label z"), "no columns beside the label",
		`"x" has 3 rows`, `"y" has 3 rows`)
}

func TestAnInterruptedShardLeavesNothing(t *testing.T) {
	in := file(t, "in.csv", threes(5000))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	step, _ := progress(ctx, io.Discard, time.Now())
	f := shardFlags{h: manifest.Header{Workers: 2, How: "random", Start: "rotate"}, out: in + ".manifest"}
	if err := f.shard(in, step); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Dir(in) + "/*"); len(left) != 1 {
		t.Errorf("files are left: %v", left)
	}
}

// A line shows how far a stage is, and is removed at the end.
func TestProgressIsShownOnTerminals(t *testing.T) {
	var b bytes.Buffer
	step, end := progress(t.Context(), &b, time.Now().Add(-time.Minute))
	if err := step("look", 0.25); err != nil {
		t.Fatal(err)
	}
	end()
	if want := "\r\033[K[" + strings.Repeat("#", 10) + strings.Repeat(".", 30) + "]  25 % look\r\033[K"; b.String() != want {
		t.Errorf("%q, not %q", b.String(), want)
	}
}

// A shard has the rows that data.Deal deals to it.
func TestShardsAreDealt(t *testing.T) {
	in := file(t, "in.csv", threes(20))
	h := shardOf(t, in, "--workers", "3", "--label", "class", "--seed", "5", "--start", "first")
	m, err := manifest.Open(in + ".manifest")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d, err := data.NewDeal(data.Sizes{h.Groups[0].Rows, h.Groups[1].Rows}, 3, data.First, false, 5)
	if err != nil {
		t.Fatal(err)
	}
	next := make([][2]uint64, 3)
	for row := range uint64(20) {
		p := data.Place{Group: int(row % 2), Index: row / 2}
		w := d.Worker(p)
		got, err := m.ShardRow(w, data.Place{Group: p.Group, Index: next[w][p.Group]})
		if next[w][p.Group]++; err != nil || got != row {
			t.Errorf("row %d should be worker %d's, which has %d: %v", row, w, got, err)
		}
	}
}

func parquetOf(t *testing.T, dir string, rows int) string {
	type row struct {
		Class string  `parquet:"class"`
		X     float64 `parquet:"x"`
		Y     int32   `parquet:"y"`
	}
	path := filepath.Join(dir, fmt.Sprintf("%d.parquet", rows))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := parquet.NewGenericWriter[row](f, parquet.MaxRowsPerRowGroup(5000))
	for i := range rows {
		if _, err := w.Write([]row{{fmt.Sprint("c", i%2), float64(i % 3 * 100), int32(i % 5)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func npzOf(t *testing.T, dir string, rows int) string {
	path := filepath.Join(dir, fmt.Sprintf("%d.npz", rows))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, dims := range map[string]string{"class": "", "x": "2"} {
		w, err := z.Create(name + ".npy")
		if err != nil {
			t.Fatal(err)
		}
		head := fmt.Sprintf("{'descr': '<i4', 'fortran_order': False, 'shape': (%d,%s), }", rows, dims)
		fmt.Fprintf(w, "\x93NUMPY\x01\x00%c%c%s", len(head), 0, head)
		x := make([]int32, rows*(1+len(dims)))
		for i := range x {
			x[i] = int32(i % 6)
		}
		if err := binary.Write(w, binary.LittleEndian, x); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// liveBytes returns the most bytes of the heap that a collection found in use while f ran.
func liveBytes(f func()) (most uint64) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			runtime.GC()
			live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
			metrics.Read(live)
			most = max(most, live[0].Value.Uint64())
			select {
			case <-done:
				return
			default:
			}
		}
	})
	f()
	close(done)
	wg.Wait()
	return most
}

// Ten times the rows take at most 1.2 times the memory, up to what is allocated while a collection runs.
func TestMemoryDoesNotGrowWithTheRows(t *testing.T) {
	dir := t.TempDir()
	csvOf := func(t *testing.T, dir string, rows int) string {
		return file(t, fmt.Sprintf("%d.csv", rows), threes(rows))
	}
	for name, write := range map[string]func(*testing.T, string, int) string{"CSV": csvOf, "NPZ": npzOf, "Parquet": parquetOf} {
		shard := func(rows int) float64 {
			in := write(t, dir, rows)
			return float64(liveBytes(func() { shardOf(t, in, "--label", "class", "--workers", "4") }))
		}
		if a, b := shard(30000), shard(300000); b > 1.2*a+1e6 {
			t.Errorf("%s: %.0f bytes for ten times the rows, and %.0f before", name, b, a)
		}
	}
}
