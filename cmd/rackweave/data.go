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
	h        manifest.Header
	out      string
	groups   string
	features []string
	k, pca   int
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
Memory does not grow with the number of rows.`,
		Example: `  rackweave data shard digits.csv --label digit --workers 4
  rackweave data shard train.npz --label y --workers 8 --how aware --k 20
  rackweave data shard flights.parquet --workers 4 --how aware --k 30 --features distance,air_time --seed 7
  rackweave data shard train.csv --workers 4 --groups clusters.txt --out train.manifest --json`,
		Args: oneArg("INPUT"),
	}, func(cmd *cobra.Command, args []string) (any, func(io.Writer), error) {
		if f.out == "" {
			f.out = args[0] + ".manifest"
		}
		if err := f.shard(cmd.Context(), args[0], newProgress(cmd.ErrOrStderr())); err != nil {
			return nil, nil, err
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
	fl.Uint64Var(&f.h.Seed, "seed", 0, "what all that is drawn comes from")
	fl.StringVar(&f.h.Start, "start", "rotate",
		"worker with which the dealing of a group begins: rotate, after the one where the last group ended; first, worker 0")
	fl.StringVar(&f.out, "out", "", "file for the manifest (default: INPUT.manifest)")
	return cmd
}

func (f *shardFlags) shard(ctx context.Context, input string, p *progress) (err error) {
	if f.h.Workers < 1 || f.h.Workers > manifest.MaxWorkers {
		return fmt.Errorf("--workers %d: give the number of workers, 1 to %d", f.h.Workers, manifest.MaxWorkers)
	}
	if err := f.h.CheckHow(); err != nil {
		return err
	}
	if f.h.How == "stratified" && f.h.Label == "" && f.groups == "" {
		return errors.New("--how stratified without groups: give --label COLUMN, or --groups FILE")
	}
	for _, read := range []string{input, f.groups} {
		a, aErr := os.Stat(read)
		if b, err := os.Stat(f.out); err == nil && (b.IsDir() || aErr == nil && os.SameFile(a, b)) {
			return fmt.Errorf("--out %s: it is a folder, or a file that is read: name another file", f.out)
		}
	}
	t, err := table.Open(input)
	if err != nil {
		return err
	}
	defer t.Close()
	w, err := manifest.NewWriter(f.out)
	if err != nil {
		return err
	}
	defer w.Close()
	defer p.end()
	p.stage = "hash"
	if f.h.SHA256, err = t.SHA256(func(done float64) error { return p.at(ctx, done) }); err != nil {
		return err
	}
	names, err := f.group(ctx, t, w, p)
	if err == nil {
		err = t.Unchanged()
	}
	if err != nil {
		return err
	}
	p.stage = "write"
	_ = p.at(ctx, 1)
	f.h.Input = t.Name()
	return w.Finish(&f.h, names)
}

// group adds the group of every row to a manifest, and returns the groups' names.
func (f *shardFlags) group(ctx context.Context, t *table.Table, w *manifest.Writer, p *progress) (names []string, err error) {
	ids := map[string]int{}
	add := func(labels []string) error {
		for _, l := range labels {
			id, ok := ids[l]
			if !ok {
				id = len(names)
				ids[l], names = id, append(names, l)
			}
			if err := w.Add(id); err != nil {
				return fmt.Errorf("%w. Is it a column of classes?", err)
			}
		}
		return nil
	}
	read := func(stage string, want table.Want, each func(*table.Batch) error) error {
		p.stage = stage
		return t.Read(want, func(b *table.Batch) error { return cmp.Or(each(b), p.at(ctx, b.Done)) })
	}
	rows := uint64(0)
	count := func(b *table.Batch) error { rows += uint64(b.Rows); return nil }
	switch {
	case f.groups != "":
		if err = table.ReadLabels(f.groups, add); err == nil {
			err = read("count", table.Want{}, count)
		}
		if err == nil && rows != w.Rows() {
			err = fmt.Errorf("%s has the groups of %d rows, and %s has %d rows: give a group for each", f.groups, w.Rows(), t.Name(), rows)
		}
	case f.h.How == "aware":
		if f.k == 0 && f.h.Label == "" {
			return nil, errors.New("--how aware: give the number of groups, --k (without it, twice the values of --label)")
		}
		if f.k == 0 {
			err = read("labels", table.Want{Label: f.h.Label}, func(b *table.Batch) error {
				for _, l := range b.Labels {
					ids[l] = 1
				}
				if len(ids) > cluster.MaxK/2 {
					return fmt.Errorf("%q has more than %d values: give --k", f.h.Label, cluster.MaxK/2)
				}
				return nil
			})
			f.k = 2 * len(ids)
		}
		if err != nil {
			return nil, err
		}
		return f.cluster(t, w, read)
	case f.h.Label != "":
		err = read("labels", table.Want{Label: f.h.Label}, func(b *table.Batch) error { return add(b.Labels) })
	default:
		names = []string{"all"}
		err = read("count", table.Want{}, func(b *table.Batch) (err error) {
			for range b.Rows {
				err = cmp.Or(err, w.Add(0))
			}
			return err
		})
	}
	return names, err
}

// cluster adds the cluster of every row to a manifest.
func (f *shardFlags) cluster(t *table.Table, w *manifest.Writer, read readRows) (names []string, err error) {
	want := table.Want{Label: f.h.Label, Features: true, Columns: f.features}
	width, err := t.Width(want)
	if err != nil {
		return nil, err
	}
	for g := range f.k {
		names = append(names, strconv.Itoa(g))
	}
	pass := 0
	rows := func(each func([]float64) error) error {
		pass++
		return read(fmt.Sprintf("look, pass %d of 3", pass), want, func(b *table.Batch) error { return each(b.X) })
	}
	f.h.Axes, err = cluster.Divide(rows, width, cluster.Config{K: f.k, Axes: f.pca, Seed: f.h.Seed}, w.Add)
	return names, err
}

// readRows reads a table, and shows how far it is.
type readRows func(stage string, want table.Want, each func(*table.Batch) error) error

// progress is a line on a terminal, from the second second on.
type progress struct {
	w           io.Writer // if nil, nothing is shown
	stage       string
	begun, last time.Time
}

func newProgress(to io.Writer) *progress {
	p := &progress{begun: time.Now()}
	if f, ok := to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = f
	}
	return p
}

// at shows the part of a stage that is done, of 1. It returns an error if the command was interrupted.
func (p *progress) at(ctx context.Context, done float64) error {
	if now := time.Now(); p.w != nil && now.Sub(p.begun) > time.Second && now.Sub(p.last) > 100*time.Millisecond {
		const width = 40
		n := int(done * width)
		fmt.Fprintf(p.w, "\r\033[K[%s%s] %3.0f %% %s", strings.Repeat("#", n), strings.Repeat(".", width-n), done*100, p.stage)
		p.last = now
	}
	return ctx.Err()
}

// end removes the line.
func (p *progress) end() {
	if !p.last.IsZero() {
		fmt.Fprint(p.w, "\r\033[K")
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
