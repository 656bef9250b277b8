package models

// googLeNet is torchvision's: batch-normalised, and with 3x3 kernels where the paper has 5x5 (its issue 906).
func googLeNet(b *builder) {
	b.side = 112
	b.convNorm("conv1", 3, 64, 7, 7)
	b.side = 56
	b.convNorm("conv2", 64, 64, 1, 1)
	b.convNorm("conv3", 64, 192, 3, 3)
	in := 192
	for _, m := range []struct {
		name                                            string
		one, threeReduce, three, fiveReduce, five, pool int
	}{
		{"inception3a", 64, 96, 128, 16, 32, 32},
		{"inception3b", 128, 128, 192, 32, 96, 64},
		{"inception4a", 192, 96, 208, 16, 48, 64},
		{"inception4b", 160, 112, 224, 24, 64, 64},
		{"inception4c", 128, 128, 256, 24, 64, 64},
		{"inception4d", 112, 144, 288, 32, 64, 64},
		{"inception4e", 256, 160, 320, 32, 128, 128},
		{"inception5a", 256, 160, 320, 32, 128, 128},
		{"inception5b", 384, 192, 384, 48, 128, 128},
	} {
		b.side = 28 >> (m.name[len("inception")] - '3')
		b.convNorm(m.name+".branch1", in, m.one, 1, 1)
		b.convNorm(m.name+".branch2.0", in, m.threeReduce, 1, 1)
		b.convNorm(m.name+".branch2.1", m.threeReduce, m.three, 3, 3)
		b.convNorm(m.name+".branch3.0", in, m.fiveReduce, 1, 1)
		b.convNorm(m.name+".branch3.1", m.fiveReduce, m.five, 3, 3)
		b.convNorm(m.name+".branch4.1", in, m.pool, 1, 1)
		in = m.one + m.three + m.five + m.pool
	}
	b.linear("fc", in, 1000)
}

func inceptionV3(b *builder) {
	b.side = 149
	b.convNorm("Conv2d_1a_3x3", 3, 32, 3, 3)
	b.side = 147
	b.convNorm("Conv2d_2a_3x3", 32, 32, 3, 3)
	b.convNorm("Conv2d_2b_3x3", 32, 64, 3, 3)
	b.side = 73
	b.convNorm("Conv2d_3b_1x1", 64, 80, 1, 1)
	b.side = 71
	b.convNorm("Conv2d_4a_3x3", 80, 192, 3, 3)
	b.side = 35
	inceptionA(b, "Mixed_5b", 192, 32)
	inceptionA(b, "Mixed_5c", 256, 64)
	inceptionA(b, "Mixed_5d", 288, 64)
	b.side = 17
	inceptionB(b, "Mixed_6a", 288)
	inceptionC(b, "Mixed_6b", 128)
	inceptionC(b, "Mixed_6c", 160)
	inceptionC(b, "Mixed_6d", 160)
	inceptionC(b, "Mixed_6e", 192)
	b.side = 8
	inceptionD(b, "Mixed_7a")
	inceptionE(b, "Mixed_7b", 1280)
	inceptionE(b, "Mixed_7c", 2048)
	b.linear("fc", 2048, 1000)
}

// inceptionA is figure 5 of the paper, at 35x35.
func inceptionA(b *builder, name string, in, pool int) {
	b.convNorm(name+".branch1x1", in, 64, 1, 1)
	b.convNorm(name+".branch5x5_1", in, 48, 1, 1)
	b.convNorm(name+".branch5x5_2", 48, 64, 5, 5)
	b.convNorm(name+".branch3x3dbl_1", in, 64, 1, 1)
	b.convNorm(name+".branch3x3dbl_2", 64, 96, 3, 3)
	b.convNorm(name+".branch3x3dbl_3", 96, 96, 3, 3)
	b.convNorm(name+".branch_pool", in, pool, 1, 1)
}

// inceptionB reduces 35x35 to 17x17 (figure 10).
func inceptionB(b *builder, name string, in int) {
	b.convNorm(name+".branch3x3", in, 384, 3, 3)
	b.convNorm(name+".branch3x3dbl_1", in, 64, 1, 1)
	b.convNorm(name+".branch3x3dbl_2", 64, 96, 3, 3)
	b.convNorm(name+".branch3x3dbl_3", 96, 96, 3, 3)
}

// inceptionC is figure 6, at 17x17: 7x7 kernels as a row and a column, c channels between them.
func inceptionC(b *builder, name string, c int) {
	b.convNorm(name+".branch1x1", 768, 192, 1, 1)
	b.convNorm(name+".branch7x7_1", 768, c, 1, 1)
	b.convNorm(name+".branch7x7_2", c, c, 1, 7)
	b.convNorm(name+".branch7x7_3", c, 192, 7, 1)
	b.convNorm(name+".branch7x7dbl_1", 768, c, 1, 1)
	b.convNorm(name+".branch7x7dbl_2", c, c, 7, 1)
	b.convNorm(name+".branch7x7dbl_3", c, c, 1, 7)
	b.convNorm(name+".branch7x7dbl_4", c, c, 7, 1)
	b.convNorm(name+".branch7x7dbl_5", c, 192, 1, 7)
	b.convNorm(name+".branch_pool", 768, 192, 1, 1)
}

// inceptionD reduces 17x17 to 8x8.
func inceptionD(b *builder, name string) {
	b.convNorm(name+".branch3x3_1", 768, 192, 1, 1)
	b.convNorm(name+".branch3x3_2", 192, 320, 3, 3)
	b.convNorm(name+".branch7x7x3_1", 768, 192, 1, 1)
	b.convNorm(name+".branch7x7x3_2", 192, 192, 1, 7)
	b.convNorm(name+".branch7x7x3_3", 192, 192, 7, 1)
	b.convNorm(name+".branch7x7x3_4", 192, 192, 3, 3)
}

// inceptionE is figure 7, at 8x8: the row and the column stand side by side.
func inceptionE(b *builder, name string, in int) {
	b.convNorm(name+".branch1x1", in, 320, 1, 1)
	b.convNorm(name+".branch3x3_1", in, 384, 1, 1)
	b.convNorm(name+".branch3x3_2a", 384, 384, 1, 3)
	b.convNorm(name+".branch3x3_2b", 384, 384, 3, 1)
	b.convNorm(name+".branch3x3dbl_1", in, 448, 1, 1)
	b.convNorm(name+".branch3x3dbl_2", 448, 384, 3, 3)
	b.convNorm(name+".branch3x3dbl_3a", 384, 384, 1, 3)
	b.convNorm(name+".branch3x3dbl_3b", 384, 384, 3, 1)
	b.convNorm(name+".branch_pool", in, 192, 1, 1)
}
