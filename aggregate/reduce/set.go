package reduce

// set is a set of small numbers that knows its size.
type set struct {
	bits []uint64
	n    int
}

func (s *set) grow(size int) {
	s.bits = append(s.bits, make([]uint64, max(0, (size+63)/64-len(s.bits)))...)
}

func (s *set) len() int { return s.n }

func (s *set) has(i int) bool { return s.bits[i/64]>>(i%64)&1 != 0 }

func (s *set) add(i int) bool {
	if s.has(i) {
		return false
	}
	s.bits[i/64] |= 1 << (i % 64)
	s.n++
	return true
}

func (s *set) clear() {
	clear(s.bits)
	s.n = 0
}

func (s *set) remove(i int) {
	if s.has(i) {
		s.bits[i/64] &^= 1 << (i % 64)
		s.n--
	}
}
