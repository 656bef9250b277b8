package reduce

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rackweave/rackweave/chunk"
)

// Each script tells a story. Workers are A, B, …. The commands are the events, and below them are the actions for the lane.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d stories: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			var r *rig
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd == "new" {
					r = open(t, d)
					return ""
				}
				var out strings.Builder
				lines := strings.Split(d.Input, "\n")
				if d.Cmd != "story" {
					lines = []string{d.Cmd + " " + argsOf(d)}
				}
				for _, line := range lines {
					if line = strings.TrimSpace(line); line != "" {
						out.WriteString(command(t, r, line))
					}
				}
				if err := r.Audit(); err != nil {
					return out.String() + "WRONG: " + err.Error()
				}
				return out.String()
			})
		})
	}
}

func argsOf(d *datadriven.TestData) string {
	var args []string
	for _, a := range d.CmdArgs {
		args = append(args, a.String())
	}
	return strings.Join(args, " ")
}

func open(t *testing.T, d *datadriven.TestData) *rig {
	cfg := Config{Workers: 2, Window: 4, Sends: 72, Results: 4}
	mode, chunks, tensors, staging, direct := "eager", 4, 1, 4, false
	for key, v := range map[string]*int{"workers": &cfg.Workers, "window": &cfg.Window, "sends": &cfg.Sends,
		"results": &cfg.Results,
		"chunks":  &chunks, "tensors": &tensors, "staging": &staging} {
		d.MaybeScanArgs(t, key, v)
	}
	d.MaybeScanArgs(t, "mode", &mode)
	var err error
	if cfg.Mode, err = ParseMode(mode); err != nil {
		t.Fatal(err)
	}
	cfg.Above, cfg.Norms, direct = d.HasArg("above"), d.HasArg("norms"), d.HasArg("direct")
	if d.HasArg("sets") {
		cfg.Standing = Undecided
	}
	r := newRig(cfg, chunks, tensors, staging, direct)
	if d.HasArg("rows") {
		r = openSparse(t, d, cfg, chunks, tensors)
	}
	r.manual = d.HasArg("manual")
	return r
}

var ops = map[string]chunk.Op{
	"push": chunk.OpPush, "pushpull": chunk.OpPushPull, "pull": chunk.OpPull, "broadcast": chunk.OpBroadcast,
	"record": chunk.OpTensor,
	"commit": chunk.OpCommit, "abort": chunk.OpAbort,
}

// command runs one line of a story: "pushpull A 0 1 2 [epoch=3] [bytes=8] [form=5] [staged]".
func command(t *testing.T, r *rig, line string) string {
	words := strings.Fields(line)
	set := map[string]int{}
	var rank int
	var indexes []uint32
	for _, w := range words[1:] {
		var n int
		if key, value, ok := strings.Cut(w, "="); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			set[key] = n
		} else if _, err := fmt.Sscan(w, &n); err == nil {
			indexes = append(indexes, uint32(n))
		} else if len(w) == 1 {
			rank = int(w[0] - 'A')
		} else {
			set[w] = 1
		}
	}
	if op, ok := ops[words[0]]; ok {
		if indexes == nil {
			indexes = []uint32{0}
		}
		var out string
		for _, index := range indexes {
			out += r.send(rank, r.message(op, rank, index, set))
		}
		return out
	}
	switch words[0] {
	case "rows", "fetch", "pull-rows":
		return r.rows.command(t, r, rank, line)
	case "sent":
		r.Delivered(rank, int(indexes[0]))
		return ""
	case "freed":
		r.Freed()
		return ""
	case "release":
		r.Release(r.now, rank, r.cfg.Standing)
		return r.settle()
	case "announce":
		return r.send(rank, r.message(chunk.OpTensor, rank, chunk.IndexMask, set))
	case "admit":
		r.Admit(r.now, rank, uint64(set["set"]))
		return r.settle()
	case "leave-out":
		r.LeaveOut(r.now, rank)
		return r.settle()
	case "update-set":
		r.UpdateSet(r.now)
		return r.settle()
	case "at":
		r.now = int64(indexes[0])
		return ""
	case "advance":
		out := ""
		for r.Advance(r.now) {
			out += r.settle()
		}
		return out
	case "advance-commit":
		if !r.AdvanceCommit(r.now, set["met"] == 1) {
			return "nothing\n"
		}
		return r.settle()
	case "tick":
		out := ""
		for range max(1, set["times"]) {
			stalled := r.Tick(r.now, set["early"] == 0)
			if out += r.settle(); !stalled {
				return out + "no stall\n"
			}
		}
		return out
	case "returned":
		r.Returned(r.now, indexes[0])
		return r.settle()
	case "rows-returned":
		block, ok := r.RowsReturned(r.now, indexes[0], set["taken"] == 1, set["last"] == 1)
		if set["taken"] == 1 {
			delete(r.rows.blocks, none)
		}
		if block >= 0 {
			r.rows.blocks[block] = indexes[1:]
		}
		return fmt.Sprintf("block %d, room %t\n", block, ok) + r.settle() + command(t, r, "advance")
	case "refreshed":
		r.Refreshed(r.now)
		return r.settle()
	case "leave":
		r.Leave(rank)
		return ""
	case "lost": // as the lane does
		r.Leave(rank)
		r.End(rank)
		return r.settle()
	case "end":
		r.End(-1)
		return r.settle()
	case "state":
		out := fmt.Sprintf("open %d finished %d commit %v", r.Open(), r.Finished, r.commit.phase)
		for rank := range r.at {
			out += fmt.Sprintf(", %s holds %d", name(int32(rank)), r.Held(rank))
		}
		missing := make([]int, len(r.at))
		r.Missing(missing, missing)
		return out + fmt.Sprintf(", missing %v\n", missing)
	}
	t.Fatalf("unknown line %q", line)
	return ""
}

// message returns the message of a worker that keeps to the protocol, with the fields that the script sets.
func (r *rig) message(op chunk.Op, rank int, index uint32, set map[string]int) Message {
	p := &r.at[rank]
	m := Message{Op: op, Index: index, Bytes: chunkBytes, Where: Where{Staged: set["staged"] == 1}}
	known := int(index) < len(p.epochs)
	switch {
	case op == chunk.OpCommit:
		last := r.CommitEpoch()
		if r.cfg.Mode == Stream {
			last = p.steps
		}
		m.Epoch, m.Record = epochAfter(last), &chunk.TensorRecord{LR: float32(set["lr"]),
			Flags: chunk.RecordFlags(set["skip"])}
	case op == chunk.OpTensor:
		m.HyperSum, m.Record = uint32(max(set["hyper"], 1)), &chunk.TensorRecord{}
	case known && (op == chunk.OpPush || op == chunk.OpPushPull):
		m.Epoch = epochAfter(p.epochs[index])
	case known:
		m.Epoch = p.epochs[index]
	}
	if op == chunk.OpPull || op == chunk.OpBroadcast && rank != 0 {
		m.Bytes = 0
	}
	if v, ok := set["epoch"]; ok {
		m.Epoch = uint8(v)
	}
	if v, ok := set["form"]; ok {
		m.Where.Form, m.Bytes = uint64(v), chunkBytes/4
	}
	if v, ok := set["bytes"]; ok {
		m.Bytes = uint32(v)
	}
	return m
}
