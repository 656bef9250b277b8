package models

// alexNet is the single-column AlexNet.
func alexNet(b *builder) {
	b.side = 55
	b.biasedConv("features.0", 3, 64, 11)
	b.side = 27
	b.biasedConv("features.3", 64, 192, 5)
	b.side = 13
	b.biasedConv("features.6", 192, 384, 3)
	b.biasedConv("features.8", 384, 256, 3)
	b.biasedConv("features.10", 256, 256, 3)
	b.linear("classifier.1", 256*6*6, 4096)
	b.linear("classifier.4", 4096, 4096)
	b.linear("classifier.6", 4096, 1000)
}

func vgg16(b *builder) { vgg(b, 2, 2, 3, 3, 3) }
func vgg19(b *builder) { vgg(b, 2, 2, 4, 4, 4) }

// vgg takes how many 3x3 convolutions stand between poolings, at 64, 128, 256, 512 and 512 channels.
func vgg(b *builder, convs ...int) {
	in, layer := 3, 0
	for stage, n := range convs {
		out := min(64<<stage, 512)
		b.side = 224 >> stage
		for range n {
			b.biasedConv(at("features", layer), in, out, 3)
			in = out
			layer += 2 // a ReLU follows
		}
		layer++ // a pooling
	}
	b.linear("classifier.0", 512*7*7, 4096)
	b.linear("classifier.3", 4096, 4096)
	b.linear("classifier.6", 4096, 1000)
}
