package codec

import "encoding/binary"

const (
	// HashEvery is the number of an answer's changes from one hash of the reference to the next.
	HashEvery = 64
	hashBytes = 4
	hashPrime = 0x01000193 // FNV-1a's (RFC 9923), for each of eight interleaved hashes
)

// hash returns a hash of values by their bits.
func hash(x []float32) uint32 {
	var part [8]uint32
	for i, v := range x {
		part[i%len(part)] = (part[i%len(part)] ^ bits(v)) * hashPrime
	}
	h := uint32(0)
	for _, p := range part {
		h = (h ^ p) * hashPrime
	}
	return h
}

// AddHash appends the hash of the reference to a payload of n bytes that p begins with, and returns the new length. If it would not
// stay shorter than raw values, AddHash does nothing.
func AddHash(p []byte, n int, reference []float32) int {
	if n+hashBytes >= 4*len(reference) {
		return n
	}
	p[3] |= flagHash
	binary.LittleEndian.PutUint32(p[n:], hash(reference))
	return n + hashBytes
}
