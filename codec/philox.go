package codec

import mathbits "math/bits"

// Key names the random numbers of a chunk's elements.
type Key struct {
	Seed               uint64 // of the job
	Step, Tensor, Rank uint32
	First              uint64 // the chunk's first element in its tensor: numbers do not depend on the chunks' size
}

// uniform returns a number in [0, 1) for element i of the chunk: 24 bits of Philox4x32-10.
func (k Key) uniform(i uint64) float32 {
	i += k.First
	c := [4]uint32{uint32(i / 4), k.Tensor, k.Step, k.Rank}
	k0, k1 := uint32(k.Seed), uint32(k.Seed>>32)
	for range 10 {
		hi0, lo0 := mathbits.Mul32(0xd2511f53, c[0])
		hi1, lo1 := mathbits.Mul32(0xcd9e8d57, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0}
		k0, k1 = k0+0x9e3779b9, k1+0xbb67ae85
	}
	return float32(c[i%4]>>8) / (1 << 24)
}
