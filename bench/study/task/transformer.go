package task

import (
	"math"
	"math/rand/v2"
)

// The transformer has one layer: causal attention, then rectified linear units, each after a normalisation and beside what goes in.
const (
	letters = 32 // a to z, and those of marks
	width   = 32
	heads   = 2
	perHead = width / heads
	inner   = 64
	window  = 32 // letters that it sees

	positions = letters * width
	norm1     = positions + window*width
	queries   = norm1 + 2*width
	outward   = queries + 3*width*width
	norm2     = outward + width*width
	inner1    = norm2 + 2*width
	innerBias = inner1 + width*inner
	inner2    = innerBias + inner
	norm3     = inner2 + inner*width
	last      = norm3 + 2*width
	lastBias  = last + width*letters

	// TransformerSize is the number of parameters.
	TransformerSize = lastBias + letters
)

// transformer is the parameters, or a gradient of them. Matrices are ordered by input.
type transformer [TransformerSize]float32

func newTransformer(r *rand.Rand) *transformer {
	var n transformer
	draw := func(from, to int, deviation float64) {
		for i := from; i < to; i++ {
			n[i] = float32(r.NormFloat64() * deviation)
		}
	}
	draw(0, norm1, 0.3)
	draw(queries, norm2, math.Sqrt(1.0/width))
	draw(inner1, innerBias, math.Sqrt(2.0/width))
	draw(inner2, norm3, math.Sqrt(1.0/inner)/2)
	draw(last, lastBias, math.Sqrt(1.0/width)/2)
	for _, norm := range []int{norm1, norm2, norm3} {
		for i := range width {
			n[norm+i] = 1
		}
	}
	return &n
}

// pass holds the values of a forward pass that the backward one needs.
type pass struct {
	in, beside, out [window][width]float32 // before each normalisation
	a, b, c         normed
	qkv             [window][3 * width]float32
	share           [heads][window][window]float32 // of attention
	seen            [window][width]float32
	inner           [window][inner]float32
	chances         [window][letters]float32
}

// normed is vectors of mean 0 and deviation 1, before their gain and bias, and after.
type normed struct {
	plain, scaled [window][width]float32
	inverse       [window]float32 // of the deviation
}

func (n *normed) forward(x *[window][width]float32, p []float32) {
	for t := range x {
		mean, squares := float32(0), float32(0)
		for _, v := range x[t] {
			mean += v / width
		}
		for _, v := range x[t] {
			squares += (v - mean) * (v - mean)
		}
		inverse := float32(1 / math.Sqrt(float64(squares/width)+1e-5))
		n.inverse[t] = inverse
		for i, v := range x[t] {
			n.plain[t][i] = (v - mean) * inverse
			n.scaled[t][i] = n.plain[t][i]*p[i] + p[width+i]
		}
	}
}

// backward adds the slope of its input to dx, and those of gain and bias to g.
func (n *normed) backward(dx, d *[window][width]float32, p, g []float32) {
	for t := range d {
		sum, along := float32(0), float32(0)
		for i, v := range d[t] {
			g[i] += v * n.plain[t][i]
			g[width+i] += v
			sum += v * p[i] / width
			along += v * p[i] * n.plain[t][i] / width
		}
		for i, v := range d[t] {
			dx[t][i] += (v*p[i] - sum - n.plain[t][i]*along) * n.inverse[t]
		}
	}
}

// multiply adds x times a matrix to y.
func multiply(y, x, w []float32) {
	for k, v := range x {
		if v == 0 {
			continue
		}
		add(y, v, w[k*len(y):(k+1)*len(y)])
	}
}

// add adds v times x to y.
func add(y []float32, v float32, x []float32) {
	for i := range y {
		y[i] += v * x[i]
	}
}

// multiplied adds the slope of x to dx, and that of the matrix to g.
func multiplied(dx, dy, x, w, g []float32) {
	for k, v := range x {
		row, grow := w[k*len(dy):(k+1)*len(dy)], g[k*len(dy):(k+1)*len(dy)]
		var sum0, sum1 float32
		for i := 0; i+1 < len(dy) && i+1 < len(row) && i+1 < len(grow); i += 2 {
			d0, d1 := dy[i], dy[i+1]
			sum0 += row[i] * d0
			sum1 += row[i+1] * d1
			grow[i] += v * d0
			grow[i+1] += v * d1
		}
		dx[k] += sum0 + sum1
	}
}

// forward reads a window of text. It returns the losses of the next letters, in sum, and the number of letters that it predicts.
func (n *transformer) forward(p *pass, text []byte) (loss float64, right int) {
	for t := range window {
		emb, pos := n[int(text[t])*width:], n[positions+t*width:]
		for i := range width {
			p.in[t][i] = emb[i] + pos[i]
		}
	}
	p.a.forward(&p.in, n[norm1:])
	p.qkv, p.seen = [window][3 * width]float32{}, [window][width]float32{}
	p.beside = p.in
	for t := range window {
		multiply(p.qkv[t][:], p.a.scaled[t][:], n[queries:outward])
		for h := range heads {
			p.attend(h, t)
		}
		multiply(p.beside[t][:], p.seen[t][:], n[outward:norm2])
	}
	p.b.forward(&p.beside, n[norm2:])
	p.out = p.beside
	for t := range window {
		copy(p.inner[t][:], n[innerBias:inner2])
		multiply(p.inner[t][:], p.b.scaled[t][:], n[inner1:innerBias])
		for i, v := range p.inner[t] {
			p.inner[t][i] = max(v, 0)
		}
		multiply(p.out[t][:], p.inner[t][:], n[inner2:norm3])
	}
	p.c.forward(&p.out, n[norm3:])
	for t := range window {
		out := &p.chances[t]
		copy(out[:], n[lastBias:])
		multiply(out[:], p.c.scaled[t][:], n[last:lastBias])
		next, best := text[t+1], 0
		for i, v := range out {
			if v > out[best] {
				best = i
			}
		}
		own := out[next] - out[best]
		loss += float64(softmax(out[:], out[best])) - float64(own)
		if best == int(next) {
			right++
		}
	}
	return loss, right
}

// softmax turns logits into probabilities, and returns the logarithm of their sum before.
func softmax(x []float32, highest float32) float64 {
	sum := 0.0
	for i, v := range x {
		e := math.Exp(float64(v - highest))
		x[i] = float32(e)
		sum += e
	}
	inverse := float32(1 / sum)
	for i := range x {
		x[i] *= inverse
	}
	return math.Log(sum)
}

// scale is that of the products of queries and keys.
var scale = float32(1 / math.Sqrt(perHead))

// attend fills in what a head sees at a letter.
func (p *pass) attend(h, t int) {
	share := p.share[h][t][:t+1]
	q := p.qkv[t][h*perHead : (h+1)*perHead]
	highest := float32(math.Inf(-1))
	for s := range share {
		k := p.qkv[s][width+h*perHead:][:perHead]
		var sum float32
		for i := range q {
			sum += q[i] * k[i]
		}
		share[s] = sum * scale
		highest = max(highest, share[s])
	}
	softmax(share, highest)
	for s, weight := range share {
		add(p.seen[t][h*perHead:(h+1)*perHead], weight, p.qkv[s][2*width+h*perHead:])
	}
}

// backward adds the slopes of weight times the loss of a window to g.
func (n *transformer) backward(g *transformer, p *pass, text []byte, weight float32) {
	var d, dn [window][width]float32
	for t := range window {
		out := &p.chances[t]
		out[text[t+1]]--
		for i := range out {
			out[i] *= weight
			g[lastBias+i] += out[i]
		}
		multiplied(dn[t][:], out[:], p.c.scaled[t][:], n[last:lastBias], g[last:lastBias])
	}
	p.c.backward(&d, &dn, n[norm3:], g[norm3:])
	dn = [window][width]float32{}
	for t := range window {
		var di [inner]float32
		multiplied(di[:], d[t][:], p.inner[t][:], n[inner2:norm3], g[inner2:norm3])
		for i, v := range p.inner[t] {
			if v == 0 {
				di[i] = 0
			}
			g[innerBias+i] += di[i]
		}
		multiplied(dn[t][:], di[:], p.b.scaled[t][:], n[inner1:innerBias], g[inner1:innerBias])
	}
	p.b.backward(&d, &dn, n[norm2:], g[norm2:])
	var dqkv [window][3 * width]float32
	for t := range window {
		var seen [width]float32
		multiplied(seen[:], d[t][:], p.seen[t][:], n[outward:norm2], g[outward:norm2])
		for h := range heads {
			p.attended(&dqkv, seen[h*perHead:(h+1)*perHead], h, t)
		}
	}
	dn = [window][width]float32{}
	for t := range window {
		multiplied(dn[t][:], dqkv[t][:], p.a.scaled[t][:], n[queries:outward], g[queries:outward])
	}
	p.a.backward(&d, &dn, n[norm1:], g[norm1:])
	for t := range window {
		emb, pos := g[int(text[t])*width:], g[positions+t*width:]
		for i, v := range d[t] {
			emb[i] += v
			pos[i] += v
		}
	}
}

// attended adds the slopes of the queries, keys and values that a head used at a letter.
func (p *pass) attended(d *[window][3 * width]float32, seen []float32, h, t int) {
	share := p.share[h][t][:t+1]
	var ds [window]float32
	var along float32
	for s, weight := range share {
		v, dv := p.qkv[s][2*width+h*perHead:][:perHead], d[s][2*width+h*perHead:][:perHead]
		for i := range v {
			ds[s] += seen[i] * v[i]
			dv[i] += weight * seen[i]
		}
		along += weight * ds[s]
	}
	q, dq := p.qkv[t][h*perHead:][:perHead], d[t][h*perHead:][:perHead]
	for s, weight := range share {
		e := weight * (ds[s] - along) * scale
		add(dq, e, p.qkv[s][width+h*perHead:])
		add(d[s][width+h*perHead:][:perHead], e, q)
	}
}
