package models

func bertLarge(b *builder) {
	const vocabulary, positions, types, hidden, inner, layers = 30522, 512, 2, 1024, 4096, 24
	b.add("embeddings.word_embeddings.weight", vocabulary, hidden)
	b.add("embeddings.position_embeddings.weight", positions, hidden)
	b.add("embeddings.token_type_embeddings.weight", types, hidden)
	b.norm("embeddings.LayerNorm", hidden)
	for i := range layers {
		name := at("encoder.layer", i)
		b.linear(name+".attention.self.query", hidden, hidden)
		b.linear(name+".attention.self.key", hidden, hidden)
		b.linear(name+".attention.self.value", hidden, hidden)
		b.linear(name+".attention.output.dense", hidden, hidden)
		b.norm(name+".attention.output.LayerNorm", hidden)
		b.linear(name+".intermediate.dense", hidden, inner)
		b.linear(name+".output.dense", inner, hidden)
		b.norm(name+".output.LayerNorm", hidden)
	}
	b.linear("pooler.dense", hidden, hidden)
}

// gpt2XL's output layer is its token embedding, so it is not there a second time.
func gpt2XL(b *builder) {
	const vocabulary, positions, hidden, layers = 50257, 1024, 1600, 48
	// The release keeps fully connected weights as [in, out].
	linear := func(name string, in, out int) {
		b.add(name+".weight", in, out)
		b.add(name+".bias", out)
	}
	b.add("wte.weight", vocabulary, hidden)
	b.add("wpe.weight", positions, hidden)
	for i := range layers {
		name := at("h", i)
		b.norm(name+".ln_1", hidden)
		linear(name+".attn.c_attn", hidden, 3*hidden)
		linear(name+".attn.c_proj", hidden, hidden)
		b.norm(name+".ln_2", hidden)
		linear(name+".mlp.c_fc", hidden, 4*hidden)
		linear(name+".mlp.c_proj", 4*hidden, hidden)
	}
	b.norm("ln_f", hidden)
}
