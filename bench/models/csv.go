package models

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	maxLayers    = 1 << 20
	maxFileBytes = 128 * maxLayers
	maxTime      = int64(time.Hour) // of a layer; the sum of all fits a Duration
)

// bounded reads at most left bytes and then fails.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("more than %d bytes", maxFileBytes)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// FromCSV reads a model as SwitchML's dnn_benchmark does: a line "layer_index,numel,forward_ns,backward_ns" for each layer in
// forward order, indices ascending, spaces after commas allowed, a first line with column names optional. Errors name the
// line.
func FromCSV(r io.Reader) (Model, error) {
	in := csv.NewReader(&bounded{r, maxFileBytes})
	in.FieldsPerRecord = 4
	in.TrimLeadingSpace = true
	in.ReuseRecord = true
	m := Model{Name: "layers", Source: "a file of layers", Compute: Compute{Source: "the file of layers"}}
	var elems uint64
	last := int64(-1)
	for first := true; ; first = false {
		record, err := in.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return Model{}, csvError(err)
		}
		line, _ := in.FieldPos(0)
		if first && strings.TrimSpace(record[0]) == "layer_index" {
			continue
		}
		index, t, err := parseLayer(record)
		if err != nil {
			return Model{}, fmt.Errorf("layers, line %d: %w", line, err)
		}
		if index <= last {
			return Model{}, fmt.Errorf("layers, line %d: layer_index %d after %d: indices must ascend", line, index, last)
		}
		last = index
		if elems += t.Elems(); elems > maxElems || len(m.Tensors) == maxLayers {
			return Model{}, fmt.Errorf("layers, line %d: %d elements in %d layers so far: use at most %d in %d",
				line, elems, len(m.Tensors)+1, uint64(maxElems), maxLayers)
		}
		m.Tensors = append(m.Tensors, t)
		m.Compute.Time += t.Forward + t.Backward
	}
	if len(m.Tensors) == 0 {
		return Model{}, errors.New("layers: the file has none: give a line layer_index,numel,forward_ns,backward_ns for each")
	}
	return m, nil
}

func csvError(err error) error {
	var syntax *csv.ParseError
	if !errors.As(err, &syntax) {
		return fmt.Errorf("reading layers: %w", err)
	}
	if errors.Is(err, csv.ErrFieldCount) {
		return fmt.Errorf("layers, line %d: not the four fields layer_index,numel,forward_ns,backward_ns", syntax.Line)
	}
	return fmt.Errorf("layers, line %d: %w", syntax.Line, syntax.Err)
}

func parseLayer(record []string) (index int64, t Tensor, err error) {
	var v [4]int64
	for i, limit := range [...]int64{math.MaxInt64, maxElems, maxTime, maxTime} {
		name := [...]string{"layer_index", "numel", "forward_ns", "backward_ns"}[i]
		field := strings.TrimSpace(record[i])
		if v[i], err = strconv.ParseInt(field, 10, 64); err != nil || v[i] < 0 || v[i] > limit {
			return 0, t, fmt.Errorf("%s %q: use a whole number from 0 to %d", name, field, limit)
		}
	}
	if v[1] == 0 {
		return 0, t, errors.New("numel is 0: add the times of a layer without parameters to its neighbour's")
	}
	return v[0], Tensor{fmt.Sprintf("layer%d", v[0]), []int{int(v[1])}, time.Duration(v[2]), time.Duration(v[3])}, nil
}
