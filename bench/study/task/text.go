package task

import (
	"math/rand/v2"
)

// TextLength is the number of letters, and textPart the number that a fold tests with.
const (
	TextLength = 1 << 17
	textPart   = 1 << 12
)

// reading is the task to predict the next letter: its samples are windows of the text, by their first letter.
type reading struct {
	text, tests []byte
	pass        pass
}

// NewText tests with a part of the text that differs by fold, and trains with the rest.
func NewText(fold int) Task {
	text := newton()
	first := (2*fold + 1) * TextLength / (2 * Folds)
	return &reading{
		text: append(text[:first:first], text[first+textPart:]...), tests: text[first : first+textPart],
	}
}

func (r *reading) Fresh(chance *rand.Rand) []float32 { return newTransformer(chance)[:] }

func (r *reading) Gradient(params, g []float32, batch []int) {
	clear(g)
	n := (*transformer)(params)
	for _, first := range batch {
		text := r.text[first : first+window+1]
		n.forward(&r.pass, text)
		n.backward((*transformer)(g), &r.pass, text, 1/float32(window*len(batch)))
	}
}

func (r *reading) Test(params []float32) (loss, accuracy float64) {
	letters := 0
	for first := 0; first+window < len(r.tests); first += window {
		l, right := (*transformer)(params).forward(&r.pass, r.tests[first:])
		loss, accuracy, letters = loss+l, accuracy+float64(right), letters+window
	}
	return loss / float64(letters), 100 * accuracy / float64(letters)
}

// shards deals windows that overlap by half. Skewed, each worker reads a part of the text of its own.
func (r *reading) Shards(n int, skewed bool) [][]int {
	var starts []int
	for first := 0; first+window < len(r.text); first += window / 2 {
		starts = append(starts, first)
	}
	if !skewed {
		rand.New(rand.NewPCG(1, 5)).Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	}
	return divide(starts, n)
}
