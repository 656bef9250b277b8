package models

import (
	"fmt"
	"strings"
)

// googLeNet is torchvision's: batch-normalised, and with 3x3 kernels where the paper has 5x5 (its issue 906).
func googLeNet(b *builder) {
	b.branches(`
112 conv 3: 1 64@7x7
56 conv 64: 2 64 192@3x3
28 inception3a.branch 192: 1 64 | 2.0 96 128@3x3 | 3.0 16 32@3x3 | 4.1 32
28 inception3b.branch 256: 1 128 | 2.0 128 192@3x3 | 3.0 32 96@3x3 | 4.1 64
14 inception4a.branch 480: 1 192 | 2.0 96 208@3x3 | 3.0 16 48@3x3 | 4.1 64
14 inception4b.branch 512: 1 160 | 2.0 112 224@3x3 | 3.0 24 64@3x3 | 4.1 64
14 inception4c.branch 512: 1 128 | 2.0 128 256@3x3 | 3.0 24 64@3x3 | 4.1 64
14 inception4d.branch 512: 1 112 | 2.0 144 288@3x3 | 3.0 32 64@3x3 | 4.1 64
14 inception4e.branch 528: 1 256 | 2.0 160 320@3x3 | 3.0 32 128@3x3 | 4.1 128
7 inception5a.branch 832: 1 256 | 2.0 160 320@3x3 | 3.0 32 128@3x3 | 4.1 128
7 inception5b.branch 832: 1 384 | 2.0 192 384@3x3 | 3.0 48 128@3x3 | 4.1 128`)
	b.linear("fc", 1024, 1000)
}

// inceptionV3's blocks Mixed_5 are figure 5 of the paper, Mixed_6a is figure 10, the other Mixed_6 are figure 6, with 7x7 kernels
// as a row and a column, and Mixed_7b and c are figure 7, with the row and the column side by side.
func inceptionV3(b *builder) {
	b.branches(`
149 Conv2d_ 3: 1a_3x3 32@3x3
147 Conv2d_ 32: 2a_3x3 32@3x3 | 2b_3x3 64@3x3
73 Conv2d_ 64: 3b_1x1 80
71 Conv2d_ 80: 4a_3x3 192@3x3
35 Mixed_5b.branch 192: 1x1 64 | 5x5_1 48 64@5x5 | 3x3dbl_1 64 96@3x3 96@3x3 | _pool 32
35 Mixed_5c.branch 256: 1x1 64 | 5x5_1 48 64@5x5 | 3x3dbl_1 64 96@3x3 96@3x3 | _pool 64
35 Mixed_5d.branch 288: 1x1 64 | 5x5_1 48 64@5x5 | 3x3dbl_1 64 96@3x3 96@3x3 | _pool 64
17 Mixed_6a.branch 288: 3x3 384@3x3 | 3x3dbl_1 64 96@3x3 96@3x3
17 Mixed_6b.branch 768: 1x1 192 | 7x7_1 128 128@1x7 192@7x1 | 7x7dbl_1 128 128@7x1 128@1x7 128@7x1 192@1x7 | _pool 192
17 Mixed_6c.branch 768: 1x1 192 | 7x7_1 160 160@1x7 192@7x1 | 7x7dbl_1 160 160@7x1 160@1x7 160@7x1 192@1x7 | _pool 192
17 Mixed_6d.branch 768: 1x1 192 | 7x7_1 160 160@1x7 192@7x1 | 7x7dbl_1 160 160@7x1 160@1x7 160@7x1 192@1x7 | _pool 192
17 Mixed_6e.branch 768: 1x1 192 | 7x7_1 192 192@1x7 192@7x1 | 7x7dbl_1 192 192@7x1 192@1x7 192@7x1 192@1x7 | _pool 192
8 Mixed_7a.branch 768: 3x3_1 192 320@3x3 | 7x7x3_1 192 192@1x7 192@7x1 192@3x3
8 Mixed_7b.branch 1280: 1x1 320 | 3x3_1 384
8 Mixed_7b.branch 384: 3x3_2a 384@1x3 | 3x3_2b 384@3x1
8 Mixed_7b.branch 1280: 3x3dbl_1 448 384@3x3
8 Mixed_7b.branch 384: 3x3dbl_3a 384@1x3 | 3x3dbl_3b 384@3x1
8 Mixed_7b.branch 1280: _pool 192
8 Mixed_7c.branch 2048: 1x1 320 | 3x3_1 384
8 Mixed_7c.branch 384: 3x3_2a 384@1x3 | 3x3_2b 384@3x1
8 Mixed_7c.branch 2048: 3x3dbl_1 448 384@3x3
8 Mixed_7c.branch 384: 3x3dbl_3a 384@1x3 | 3x3dbl_3b 384@3x1
8 Mixed_7c.branch 2048: _pool 192`)
	b.linear("fc", 2048, 1000)
}

// branches adds the convolutions of a table, each with the batch normalisation that follows it. A line has the side, the beginning
// of the names, the channels of the input, and branches from it: of each the first name, and one after another its convolutions, as
// channels@kernel, 1x1 if it is left out. The names after the first count on from its last digit.
func (b *builder) branches(table string) {
	for line := range strings.SplitSeq(strings.TrimSpace(table), "\n") {
		var prefix string
		var channels int
		head, branches, _ := strings.Cut(line, ":")
		fmt.Sscan(head, &b.side, &prefix, &channels)
		for branch := range strings.SplitSeq(branches, "|") {
			in, words := channels, strings.Fields(branch)
			name := []byte(prefix + words[0])
			for _, conv := range words[1:] {
				out, height, width := 0, 1, 1
				fmt.Sscanf(conv, "%d@%dx%d", &out, &height, &width)
				b.conv(string(name)+".conv", in, out, height, width)
				b.norm(string(name)+".bn", out)
				in = out
				name[len(name)-1]++
			}
		}
	}
}
