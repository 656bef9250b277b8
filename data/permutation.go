package data

import "math/bits"

// rounds of a network. With six, places of groups of two or three rows are a few percent too frequent; with ten, a few thousandths.
const rounds = 10

// permutation is a seeded bijection of the numbers below n: a Feistel network over the least even number of bits that holds them,
// applied again while its result is n or more.
type permutation struct {
	n    uint64
	half uint // bits of each half
	keys [rounds]uint64
}

func newPermutation(n, key uint64) permutation {
	p := permutation{n: n, half: max(2, uint(bits.Len64(max(n, 1)-1)+1)/2)}
	for i := range p.keys {
		p.keys[i] = mix(key + uint64(i)*golden)
	}
	return p
}

// at returns the image of i, which is below n.
func (p *permutation) at(i uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	for {
		left, right := i>>p.half, i&mask
		for _, key := range p.keys {
			left, right = right, left^mix(key^right)&mask
		}
		if i = left<<p.half | right; i < p.n {
			return i
		}
	}
}

// golden is 2^64 over the golden ratio, the step of SplitMix64 (Steele, Lea, Flood, 2014).
const golden = 0x9e3779b97f4a7c15

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hash mixes several numbers in order.
func hash(parts ...uint64) uint64 {
	h := uint64(0)
	for _, p := range parts {
		h = mix(h ^ p)
	}
	return h
}
