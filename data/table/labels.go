package table

import (
	"bufio"
	"cmp"
	"io"
	"os"

	"github.com/rackweave/rackweave/data/npy"
)

// ReadLabels calls f with all labels of a file, some at a time: a label on each line, or an .npy array of one dimension.
func ReadLabels(path string, f func(labels []string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, t := bufio.NewReaderSize(file, 1<<16), &Table{file: file}
	if first, _ := r.Peek(len(npy.Magic)); string(first) == npy.Magic {
		a, err := newArray("group", r)
		if err == nil && len(a.h.Shape) != 1 {
			err = unusable("an array of shape %d: give one of one dimension", a.h.Shape)
		}
		if err != nil {
			return t.named(err)
		}
		t.format = stored([]column{{name: "group", rows: a.h.Shape[0], width: 1}}, func(int) (cursor, error) { return a, nil })
	} else {
		t.format = lines(r)
	}
	rows, err := t.Select(Want{Label: "group"})
	if err != nil {
		return err
	}
	return rows.Read(func(b *Batch) error { return f(b.Labels) })
}

// lines returns the format of text without a line of names, which is read once.
func lines(r io.Reader) format {
	scanner, record := bufio.NewScanner(r), make([]string, 1)
	return format{[]column{{name: "group", width: 1}}, func([]int) ([]cursor, func() (float64, error), error) {
		return []cursor{&field{&record, 0}}, func() (float64, error) {
			if !scanner.Scan() {
				return 0, cmp.Or(scanner.Err(), io.EOF)
			}
			record[0] = scanner.Text()
			return 0, nil
		}, nil
	}}
}
