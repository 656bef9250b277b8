package bench

import (
	"fmt"
	"math"
)

// InitialStep is the step whose "gradients" are the initial parameters.
const InitialStep = -1

// Gradient fills x with a worker's gradient of a tensor in a step: numbers from -1 to 1 that depend on the arguments alone. Without
// verification every step uses the gradients of step 0.
func Gradient(x []float32, seed uint64, rank, tensor, step int) {
	state := mix(seed ^ mix(uint64(rank)<<40^uint64(tensor)<<16^uint64(step+1)))
	for i := range x {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		x[i] = float32(int32(state>>32)) * (1.0 / (1 << 31))
	}
}

// mix is a bijection that spreads close numbers (splitmix64's finalizer). In practice it is never 0 for the inputs above; if it
// were, the generator would only give zeros.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// digest returns a checksum of the values' bits, in order.
func digest(x []float32) uint64 {
	sum := uint64(0xcbf29ce484222325)
	for _, v := range x {
		sum = (sum ^ uint64(math.Float32bits(v))) * 0x100000001b3
		sum ^= sum >> 29
	}
	return sum
}

// checksum returns the tensors' digests as one, in hex.
func checksum(digests []uint64) string {
	sum := uint64(0)
	for _, d := range digests {
		sum = mix(sum ^ d)
	}
	return fmt.Sprintf("%016x", sum)
}
