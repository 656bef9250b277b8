package optim

// SumInto adds the sources in index order: ((s0 + s1) + s2) + …. With accumulate, dst comes before s0. So a sum over a prefix,
// followed by an accumulation of the rest, gives the bits of one sum over all.
func SumInto(dst []float32, srcs [][]float32, accumulate bool) {
	for i := range dst {
		rest := srcs
		x := dst[i]
		if !accumulate {
			x, rest = srcs[0][i], srcs[1:]
		}
		for _, s := range rest {
			x += s[i]
		}
		dst[i] = x
	}
}

// SumSq returns the sum of squares in f64: element i goes to partial sum i mod 16, and the sixteen are added in halves (0 to 8,
// 1 to 9, …, then 0 to 4, …). Each square of an f32 is exact in f64.
func SumSq(x []float32) float64 {
	var part [16]float64
	for i, v := range x {
		part[i%16] += float64(float64(v) * float64(v))
	}
	for half := 8; half > 0; half /= 2 {
		for j := range half {
			part[j] += part[j+half]
		}
	}
	return part[0]
}
