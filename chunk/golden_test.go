package chunk

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestGolden runs the scripts in testdata/plan.
//
//	new [chunk_bytes=N] lanes=(NIC/CORE[@WEIGHT], …)   a plan
//	add                                                a batch: a line `"name" dtype elems [width]` for each tensor
//	chunks lane=N | tensor=N                           the chunks of one, as accessors give them
//	rows tensor=N                                      a sparse tensor's rows by lane
//	hash                                               the plan's hash
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata/plan", func(t *testing.T, path string) {
		var p *Plan
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := script(t, &p, d)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return out
		})
	})
}

func script(t *testing.T, p **Plan, d *datadriven.TestData) (string, error) {
	switch d.Cmd {
	case "new":
		next, err := newFromArgs(t, d)
		if err != nil {
			return "", err
		}
		*p = next
		return next.String(), nil
	case "add":
		var batch []Tensor
		for line := range strings.Lines(d.Input) {
			var ts Tensor
			var dtype string
			n, err := fmt.Sscanf(line, "%q %s %d %d", &ts.Name, &dtype, &ts.Elems, &ts.Width)
			if n < 3 {
				return "", err
			}
			ts.DType, _ = ParseDType(dtype)
			batch = append(batch, ts)
		}
		if err := (*p).Add(batch); err != nil {
			return "", err
		}
		return (*p).String(), nil
	case "chunks":
		var ids []int
		for _, arg := range d.CmdArgs {
			var n int
			arg.Scan(t, 0, &n)
			if arg.Key == "lane" {
				for _, id := range (*p).LaneChunks(n) {
					ids = append(ids, int(id))
				}
				continue
			}
			first, end := (*p).TensorChunks(n)
			for id := first; id < end; id++ {
				ids = append(ids, id)
			}
		}
		var b strings.Builder
		for _, id := range ids {
			c := (*p).Chunk(id)
			fmt.Fprintf(&b, "%d: tensor %d [%d, %d) lane %d index %d\n", id, c.Tensor, c.Offset, c.Offset+uint64(c.Elems), c.Lane,
				c.LaneIndex)
		}
		return b.String(), nil
	case "rows":
		var n int
		d.ScanArgs(t, "tensor", &n)
		var b strings.Builder
		fmt.Fprintf(&b, "%d per chunk", (*p).RowsPerChunk(n))
		for l := range (*p).NumLanes() {
			fmt.Fprintf(&b, ", lane %d: %d", l, (*p).LaneRows(l, n))
		}
		b.WriteByte('\n')
		return b.String(), nil
	case "hash":
		return fmt.Sprintf("%x\n", (*p).Hash()), nil
	}
	return "", fmt.Errorf("unknown command %q", d.Cmd)
}

func newFromArgs(t *testing.T, d *datadriven.TestData) (*Plan, error) {
	var c Config
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "chunk_bytes":
			arg.Scan(t, 0, &c.ChunkBytes)
		case "lanes":
			for _, v := range arg.Vals {
				var l Lane
				pair, weight, weighted := strings.Cut(v, "@")
				if _, err := fmt.Sscanf(pair, "%d/%d", &l.NIC, &l.Core); err != nil {
					return nil, err
				}
				if weighted {
					if _, err := fmt.Sscan(weight, &l.Weight); err != nil {
						return nil, err
					}
				}
				c.Lanes = append(c.Lanes, l)
			}
		}
	}
	return NewPlan(c)
}
