package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rackweave/rackweave/data/cluster"
	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/data/table"
)

func dataCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "data",
		Short: "Decide which rows of a data set each worker trains on",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(dataShardCommand(), dataShowCommand(), dataServeCommand(), dataStatusCommand())
	return cmd
}

// shardFlags choose a division of rows.
type shardFlags struct {
	h                manifest.Header
	out, groups      string
	features, others []string // others have another number of rows than the label
	k, pca           int
}

func dataShardCommand() *cobra.Command {
	var f shardFlags
	cmd := printing(&cobra.Command{
		Use:   "shard INPUT",
		Short: "Divide the rows of a CSV, NPZ or Parquet file among workers, and write a manifest of row numbers",
		Long: `Divide the rows of a file among workers: CSV whose first line names the columns, NPZ, or Parquet. Columns of NPZ are its arrays.
The manifest has the group and the worker of each row, and no data. numpy.load opens it.

  random      any rows, as many to each worker
  mod         row i to worker i modulo the number of workers
  stratified  of each group as many rows to each worker; the groups are the values of --label
  aware       the same with groups of rows that look alike: k-means on principal axes of the features. Groups with fewer
              rows than workers go to every worker

With --groups, another program has found the groups: a text file with a name per line, or a one-dimensional .npy array.
Memory does not grow with the number of rows. The first row has number 0.`,
		Example: `  rackweave data shard digits.csv --label digit --workers 4
  rackweave data shard train.npz --label y --workers 8 --how aware --k 20
  rackweave data shard flights.parquet --workers 4 --how aware --k 30 --features distance,air_time --seed 7
  rackweave data shard train.csv --workers 4 --groups clusters.txt --out train.manifest --json`,
		Args: oneArg("INPUT"),
	}, func(cmd *cobra.Command, args []string) (any, func(io.Writer), error) {
		if !cmd.Flags().Changed("workers") {
			return nil, nil, fmt.Errorf("--workers is missing: give the number of workers, 1 to %d", manifest.MaxWorkers)
		}
		if f.out == "" {
			f.out = args[0] + ".manifest"
		}
		to := cmd.ErrOrStderr()
		if file, ok := to.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
			to = io.Discard
		}
		step, end := progress(cmd.Context(), to, time.Now())
		err := f.shard(args[0], step)
		if end(); err != nil {
			return nil, nil, err
		}
		if len(f.others) > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "left out, because the label %q has %d rows: %s\n", f.h.Label, f.h.Rows,
				strings.Join(f.others, ", "))
		}
		return showManifest(f.out, false)
	})
	fl := cmd.Flags()
	fl.StringVar(&f.h.Label, "label", "", "column whose values are the groups, if they are not clusters or in a file")
	fl.IntVar(&f.h.Workers, "workers", 0, "the number of workers; each gets a shard")
	fl.StringVar(&f.h.How, "how", "stratified", "random, mod, stratified or aware")
	fl.IntVar(&f.k, "k", 0, "groups of aware (default: twice the values of --label)")
	fl.IntVar(&f.pca, "pca", 0, "principal axes of aware (default: the fewest with 90 % of the variance, and at most 50)")
	fl.StringSliceVar(&f.features, "features", nil, "columns that aware looks at (default: all but the label)")
	fl.StringVar(&f.groups, "groups", "", "file with the group of each row")
	fl.Uint64Var(&f.h.Seed, "seed", 0, "seed of all that is drawn at random")
	fl.StringVar(&f.h.Start, "start", "rotate",
		"worker with which the dealing of a group begins: rotate, after the one where the last group ended; first, worker 0")
	fl.StringVar(&f.out, "out", "", "file for the manifest (default: INPUT.manifest)")
	return cmd
}

func (f *shardFlags) shard(input string, step func(stage string, done float64) error) (err error) {
	if f.h.Workers < 1 || f.h.Workers > manifest.MaxWorkers {
		return fmt.Errorf("--workers %d: give the number of workers, 1 to %d", f.h.Workers, manifest.MaxWorkers)
	}
	if err := f.h.CheckHow(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	switch {
	case f.h.How == "stratified" && f.h.Label == "" && f.groups == "":
		return errors.New("--how stratified without groups: give --label COLUMN, or --groups FILE")
	case f.h.Label != "" && f.groups != "":
		return fmt.Errorf("--label %s and --groups %s: both name the groups: give one", f.h.Label, f.groups)
	case (f.k != 0 || f.pca != 0 || f.features != nil) && (f.h.How != "aware" || f.groups != ""):
		return errors.New("--k, --pca and --features choose the groups of --how aware without --groups: leave them out")
	}
	for _, read := range []string{input, f.groups} {
		a, aErr := os.Stat(read)
		if b, err := os.Stat(f.out); aErr == nil && err == nil && os.SameFile(a, b) {
			return fmt.Errorf("--out %s: it is an input: name another file", f.out)
		}
	}
	t, err := table.Open(input)
	if err != nil {
		return err
	}
	defer t.Close()
	w, err := manifest.NewWriter(f.out)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer w.Close()
	w.Step = func(done float64) error { return step("write", done) }
	d := &division{f, t, w, step, map[string]int{}, nil}
	if f.h.SHA256, err = t.SHA256(func(done float64) error { return step("hash", done) }); err != nil {
		return err
	}
	if err = cmp.Or(d.group(), t.Unchanged()); err != nil {
		return err
	}
	f.h.Input = t.Name()
	return w.Finish(&f.h, d.names)
}

// division finds the group of every row.
type division struct {
	*shardFlags
	table *table.Table
	to    *manifest.Writer
	step  func(stage string, done float64) error
	ids   map[string]int // of groups, by their names
	names []string
}

// read calls f with all rows.
func (d *division) read(stage string, want table.Want, f func(*table.Batch) error) error {
	rows, err := d.table.Select(want)
	if err != nil {
		return err
	}
	d.others = rows.Others
	return rows.Read(func(b *table.Batch) error { return cmp.Or(f(b), d.step(stage, b.Done)) })
}

// id returns the number of a group.
func (d *division) id(name string) int {
	id, ok := d.ids[name]
	if !ok {
		id, name = len(d.names), strings.Clone(name) // a copy, because the name shares the memory of its whole row
		d.ids[name], d.names = id, append(d.names, name)
	}
	return id
}

// add adds rows to the manifest, by the names of their groups.
func (d *division) add(names []string) error {
	for _, name := range names {
		if d.id(name) == manifest.MaxGroups {
			return fmt.Errorf("%s has more than %d values: name a column of classes", cmp.Or(d.groups, "--label "+d.h.Label),
				manifest.MaxGroups)
		}
		if err := d.to.Add(d.id(name)); err != nil {
			return err
		}
	}
	return nil
}

// group adds all rows to the manifest.
func (d *division) group() error {
	switch {
	case d.groups != "":
		rows := uint64(0)
		err := table.ReadLabels(d.groups, func(names []string) error { return cmp.Or(d.add(names), d.step("groups", 0)) })
		if err == nil {
			err = d.read("count", table.Want{}, func(b *table.Batch) error { rows += uint64(b.Rows); return nil })
		}
		if err == nil && rows != d.to.Rows() {
			err = fmt.Errorf("%s has the groups of %d rows, and %s has %d rows: give a group for each", d.groups, d.to.Rows(), d.table.Name(), rows)
		}
		return err
	case d.h.How == "aware":
		return d.cluster()
	case d.h.Label != "":
		return d.read("labels", table.Want{Label: d.h.Label}, func(b *table.Batch) error { return d.add(b.Labels) })
	}
	return d.read("count", table.Want{}, func(b *table.Batch) error { return d.add(slices.Repeat([]string{"all"}, b.Rows)) })
}

// cluster adds all rows to the manifest, by what they look like.
func (d *division) cluster() error {
	if d.k == 0 && d.h.Label == "" {
		return errors.New("--how aware: give the number of groups, --k (without it, twice the values of --label)")
	}
	if d.k == 0 {
		err := d.read("labels", table.Want{Label: d.h.Label}, func(b *table.Batch) error {
			for _, l := range b.Labels {
				d.id(l)
			}
			if len(d.names) > cluster.MaxK/2 {
				return fmt.Errorf("--label %s has more than %d values: give --k", d.h.Label, cluster.MaxK/2)
			}
			return nil
		})
		if err != nil {
			return err
		}
		d.k = 2 * len(d.names)
	}
	want := table.Want{Label: d.h.Label, Features: true, Columns: d.features}
	all, err := d.table.Select(want)
	if err != nil {
		return err
	}
	pass := 0
	rows := func(f func([]float64) error) error {
		pass++
		return d.read(fmt.Sprintf("look, pass %d of 3", pass), want, func(b *table.Batch) error { return f(b.X) })
	}
	d.h.Axes, err = cluster.Divide(rows, all.Width, cluster.Config{K: d.k, Axes: d.pca, Seed: d.h.Seed, Step: d.step}, d.to.Add)
	if errors.Is(err, table.ErrNumber) {
		err = fmt.Errorf("%w: leave the column out of --features", err)
	}
	d.names = nil
	for g := range d.k {
		d.names = append(d.names, strconv.Itoa(g))
	}
	return err
}

// progress returns a function that, after one second, shows a line on a terminal: the part of a stage that is done, of 1.
// It returns an error if the command was interrupted. end removes the line.
func progress(ctx context.Context, w io.Writer, begun time.Time) (step func(stage string, done float64) error, end func()) {
	var last time.Time
	return func(stage string, done float64) error {
			if now := time.Now(); now.Sub(begun) > time.Second && now.Sub(last) > 100*time.Millisecond {
				const width = 40
				n := int(done * width)
				fmt.Fprintf(w, "\r\033[K[%s%s] %3.0f %% %s", strings.Repeat("#", n), strings.Repeat(".", width-n), done*100, stage)
				last = now
			}
			return ctx.Err()
		}, func() {
			if !last.IsZero() {
				fmt.Fprint(w, "\r\033[K")
			}
		}
}

func dataShowCommand() *cobra.Command {
	var verify bool
	cmd := printing(&cobra.Command{
		Use:   "show MANIFEST",
		Short: "Show a manifest: its groups, and how many rows of each every worker has",
		Example: `  rackweave data show digits.csv.manifest
  rackweave data show train.manifest --verify --json`,
		Args: oneArg("MANIFEST"),
	}, func(_ *cobra.Command, args []string) (any, func(io.Writer), error) {
		return showManifest(args[0], verify)
	})
	cmd.Flags().BoolVar(&verify, "verify", false, "read the whole file, and check that nothing in it has changed")
	return cmd
}

// shown is the output of the commands about manifests, as JSON.
type shown struct {
	*manifest.Header
	Manifest string `json:"manifest"`
	Digest   string `json:"digest"`
	Verified bool   `json:"verified"`
}

func showManifest(path string, verify bool) (any, func(io.Writer), error) {
	m, err := manifest.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer m.Close()
	if verify {
		if err := m.Verify(); err != nil {
			return nil, nil, err
		}
	}
	digest := m.Digest()
	s := &shown{m.Header(), path, hex.EncodeToString(digest[:]), verify}
	return s, s.print, nil
}

// Bounds of what is printed as text.
const (
	shownGroups  = 100
	shownWorkers = 64
)

func (s *shown) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %d rows of %s, %s, seed %d\n", s.Manifest, s.Rows, s.Input, s.How, s.Seed)
	fmt.Fprintf(w, "input sha256 %s\ndigest %s", s.SHA256, s.Digest)
	if s.Verified {
		fmt.Fprint(w, ", verified")
	}
	fmt.Fprint(w, "\n\n")
	groups, workers := min(len(s.Groups), shownGroups), min(s.Workers, shownWorkers)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "rows\teach worker\t  group")
	for g, group := range s.Groups[:groups] {
		least, most := group.Rows, uint64(0)
		for _, share := range s.Histogram {
			least, most = min(least, share[g]), max(most, share[g])
		}
		each := fmt.Sprintf("%d to %d", least, most)
		if group.Everyone {
			each = "all of them"
		} else if least == most {
			each = strconv.FormatUint(most, 10)
		}
		fmt.Fprintf(tw, "%d\t%s\t  %q\n", group.Rows, each, group.Name)
	}
	_ = tw.Flush()
	if n := len(s.Groups) - groups; n > 0 {
		fmt.Fprintf(w, "and %d groups more, which --json prints\n", n)
	}
	fmt.Fprintln(w, "\neach worker's rows, and of each group (▄ an even share, █ twice that or more):")
	for worker, share := range s.Histogram[:workers] {
		total := uint64(0)
		for _, n := range share {
			total += n
		}
		fmt.Fprintf(w, "%6d %12d  ", worker, total)
		for g := range groups {
			fmt.Fprint(w, shade(float64(share[g])*float64(s.Workers)/float64(s.Groups[g].Rows)))
		}
		fmt.Fprintln(w)
	}
	if n := s.Workers - workers; n > 0 {
		fmt.Fprintf(w, "and %d workers more, which --json prints\n", n)
	}
}

// shade returns a block whose height shows a share; an even share is 1.
func shade(share float64) string {
	const blocks = "·▁▂▃▄▅▆▇█"
	if share > 0 {
		share = max(share, 0.25) // some is more than none
	}
	return string([]rune(blocks)[int(math.Round(4*min(share, 2)))])
}
