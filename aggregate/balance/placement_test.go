package balance

import "testing"

// Lanes wait while chunks are chosen, so few are chosen at once, however many a caller wants.
func TestMovesAreChosenFewAtATime(t *testing.T) {
	const chunks = 3*mostMoves - 1
	m := NewPlacement(2)
	m.homes[0], m.has[0] = chunks, chunks
	seen := map[uint32]bool{}
	for _, want := range []int{mostMoves, mostMoves, mostMoves - 1, 0} {
		indexes := m.Choose(0, 1, chunks)
		if len(indexes) != want {
			t.Errorf("%d chunks are chosen at once, want %d", len(indexes), want)
		}
		for _, i := range indexes {
			if seen[i] {
				t.Errorf("chunk %d is chosen twice", i)
			}
			seen[i] = true
		}
	}
}
