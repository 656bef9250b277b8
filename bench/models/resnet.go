package models

import "fmt"

// resNet50 has bottleneck blocks, normalised after each convolution; a stage's first block projects its shortcut.
func resNet50(b *builder) {
	b.side = 112
	b.conv("conv1", 3, 64, 7, 7)
	b.norm("bn1", 64)
	in := 64
	for stage, blocks := range []int{3, 4, 6, 3} {
		mid := 64 << stage
		out := 4 * mid
		b.side = 56 >> stage
		for i := range blocks {
			name := fmt.Sprintf("layer%d.%d", stage+1, i)
			b.conv(name+".conv1", in, mid, 1, 1)
			b.norm(name+".bn1", mid)
			b.conv(name+".conv2", mid, mid, 3, 3)
			b.norm(name+".bn2", mid)
			b.conv(name+".conv3", mid, out, 1, 1)
			b.norm(name+".bn3", out)
			if i == 0 {
				b.conv(name+".downsample.0", in, out, 1, 1)
				b.norm(name+".downsample.1", out)
			}
			in = out
		}
	}
	b.linear("fc", in, 1000)
}

// resNet269 has pre-activation bottleneck units: the normalisation stands before each convolution, so a projected shortcut
// has none of its own. Names are MXNet's. The input is normalised too; its scale is fixed, but is a parameter all the same.
func resNet269(b *builder) {
	norm := func(name string, channels int) {
		b.add(name+"_gamma", channels)
		b.add(name+"_beta", channels)
	}
	conv := func(name string, in, out, k int) {
		b.add(name+"_weight", out, in, k, k)
		b.uses(b.side * b.side)
	}
	b.side = 112
	norm("bn_data", 3)
	conv("conv0", 3, 64, 7)
	norm("bn0", 64)
	in := 64
	for stage, units := range []int{3, 30, 48, 8} {
		mid := 64 << stage
		out := 4 * mid
		b.side = 56 >> stage
		for i := range units {
			name := fmt.Sprintf("stage%d_unit%d_", stage+1, i+1)
			norm(name+"bn1", in)
			conv(name+"conv1", in, mid, 1)
			norm(name+"bn2", mid)
			conv(name+"conv2", mid, mid, 3)
			norm(name+"bn3", mid)
			conv(name+"conv3", mid, out, 1)
			if i == 0 {
				conv(name+"sc", in, out, 1)
			}
			in = out
		}
	}
	norm("bn1", in)
	b.add("fc1_weight", 1000, in)
	b.uses(1)
	b.add("fc1_bias", 1000)
}
