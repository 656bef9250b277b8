/*
 * The codecs over groups of 64 elements, for a vector of any width. Package codec specifies their bits. An instruction set includes
 * this file after body.h.
 */
#define PARTS (RWK_CODED / WIDTH)

#if WIDTH == 1
typedef int32_t vn; /* a vector of integers */
#define NUMBERS(x) ((int32_t)bits_of(x))
#define FLOATS(x) float_of((uint32_t)(x))
#define CONVERT(x, type) ((type)(x))
#define MASK(condition) (-(int32_t)(condition))
#else
typedef int32_t vn __attribute__((vector_size(4 * WIDTH)));
#define NUMBERS(x) ((vn)(x))
#define FLOATS(x) ((vf)(x))
#define CONVERT(x, type) __builtin_convertvector(x, type)
#define MASK(condition) ((vn)(condition))
#endif

FN vn vn_all(int32_t x)
{
	return x - (vn){0};
}

FN vn vn_pick(vn mask, vn yes, vn no)
{
	return (mask & yes) | (~mask & no);
}

/* Returns x << bits, whose highest bits are lost. */
FN vn vn_up(vn x, vn bits)
{
#if WIDTH == 1
	return (int32_t)((uint32_t)x << bits);
#else
	return x << bits;
#endif
}

FN vn magnitude(vf x)
{
	return NUMBERS(x) & INT32_MAX;
}

/* Computes what a codec gets: the values with the residual, or less the reference. */
FN void inputs(vf x[PARTS], const struct rwk_encoding *e, uint64_t i)
{
	const float *memory = rwk_at(e->memory, RWK_F32, i);
	const vf factor = vf_all(e->factor);

	if (e->type == RWK_F32)
		for (int v = 0; v < PARTS; v++)
			x[v] = vf_load(rwk_at(e->values, RWK_F32, i + v * WIDTH));
	else if (e->type == RWK_BF16)
		for (int v = 0; v < PARTS; v++)
			x[v] = vf_load_bf16(rwk_at(e->values, RWK_BF16, i + v * WIDTH));
	else
		for (int v = 0; v < PARTS; v++)
			x[v] = vf_load_f16(rwk_at(e->values, RWK_F16, i + v * WIDTH));
	if (e->memory && e->reference)
		for (int v = 0; v < PARTS; v++)
			x[v] = x[v] - vf_load(memory + v * WIDTH);
	else if (e->memory)
		for (int v = 0; v < PARTS; v++)
			x[v] = x[v] + factor * vf_load(memory + v * WIDTH);
}

LOOP void gather_inputs(const struct rwk_encoding *e, uint64_t from, uint64_t to, float *to_x)
{
	for (uint64_t i = from; i < to; i += RWK_CODED) {
		vf x[PARTS];

		inputs(x, e, i);
		for (int v = 0; v < PARTS; v++)
			vf_store(to_x + i - from + v * WIDTH, x[v]);
	}
}

FN int32_t bounds_any(const struct rwk_encoding *e, uint64_t from, uint64_t to, float part[RWK_CODED], int mean)
{
	vn most[2] = {0};
	vf sum[PARTS];
	int32_t lanes[WIDTH], all = 0;

	for (int v = 0; v < PARTS; v++)
		sum[v] = vf_load(part + v * WIDTH);
	for (uint64_t i = from; i < to; i += RWK_CODED) {
		vf x[PARTS];

		inputs(x, e, i);
		for (int v = 0; v < PARTS; v++) {
			most[v % 2] = (vn)vi_max((vi)most[v % 2], (vi)magnitude(x[v]));
			if (mean)
				sum[v] = sum[v] + FLOATS(magnitude(x[v]));
		}
	}
	vn both = (vn)vi_max((vi)most[0], (vi)most[1]);

	memcpy(lanes, &both, sizeof lanes);
	for (int j = 0; j < WIDTH; j++)
		all = lanes[j] > all ? lanes[j] : all;
	for (int v = 0; v < PARTS; v++)
		vf_store(part + v * WIDTH, sum[v]);
	return all;
}

LOOP int32_t bounds(const struct rwk_encoding *e, uint64_t from, uint64_t to, float part[RWK_CODED])
{
	return e->codec == RWK_CODEC_SIGN ? bounds_any(e, from, to, part, 1) : bounds_any(e, from, to, part, 0);
}

/* The counters of Philox4x32-10, a 32-bit word of each in a lane of 64 bits, above which anything may lie. */
struct counters {
	vw c0, c1, c2, c3;
};

FN void philox_round(struct counters *c, uint32_t k0, uint32_t k1)
{
	vw p0 = vw_product(c->c0, 0xd2511f53), p1 = vw_product(c->c2, 0xcd9e8d57);

	c->c0 = p1 >> 32 ^ c->c1 ^ (k0 - (vw){0});
	c->c2 = p0 >> 32 ^ c->c3 ^ (k1 - (vw){0});
	c->c1 = p1;
	c->c3 = p0;
}

/* Returns a number in [0, 1) of 24 bits of each word. */
FN vf fraction(vn words)
{
	return CONVERT(words >> 8 & 0xffffff, vf) * 0x1p-24f;
}

FN void store_fractions(float *u, const struct counters c)
{
#if WIDTH == 1
	u[0] = fraction((vn)c.c0);
	u[1] = fraction((vn)c.c1);
	u[2] = fraction((vn)c.c2);
	u[3] = fraction((vn)c.c3);
#else
	vw low = (c.c0 & UINT32_MAX) | c.c1 << 32, high = (c.c2 & UINT32_MAX) | c.c3 << 32;

	vf_store(u, fraction((vn)vw_first(low, high)));
	vf_store(u + WIDTH, fraction((vn)vw_second(low, high)));
#endif
}

/* Draws four numbers in [0, 1) from each of so many counters, a multiple of 16. */
LOOP void uniforms(const struct rwk_encoding *e, uint64_t counter, int counters, float *u)
{
	enum { SETS = 2, LANES = sizeof(vw) / 8 };

	for (int at = 0; at < counters; at += SETS * LANES) {
		struct counters c[SETS];
		uint32_t k0 = (uint32_t)e->seed, k1 = (uint32_t)(e->seed >> 32);

		for (int s = 0; s < SETS; s++) {
			c[s] = (struct counters){vw_counters(counter + (uint64_t)(at + s * LANES)), e->tensor - (vw){0},
						 e->step - (vw){0}, e->rank - (vw){0}};
		}
		for (int round = 0; round < 10; round++, k0 += 0x9e3779b9, k1 += 0xbb67ae85)
			for (int s = 0; s < SETS; s++)
				philox_round(&c[s], k0, k1);
		for (int s = 0; s < SETS; s++, u += 4 * LANES)
			store_fractions(u, c[s]);
	}
}

/* A float of 8 bits, of so many for the mantissa. */
struct minifloat {
	int mantissa, bias;
	float subnormal; /* adding it rounds to a multiple of the smallest magnitude */
};

FN struct minifloat minifloat_of(int codec)
{
	return codec == RWK_CODEC_FP8_E4M3 ? (struct minifloat){3, 7, 0x1p14f} : (struct minifloat){2, 15, 0x1p7f};
}

FN vn minifloat_code(const struct minifloat f, vf y)
{
	const int drop = 23 - f.mantissa;
	const int32_t rebias = (127 - f.bias) << 23;
	vn a = magnitude(y), b = a - rebias;
	vn small = NUMBERS(FLOATS(a) + f.subnormal) - NUMBERS(vf_all(f.subnormal));
	vn normal = (b + ((1 << (drop - 1)) - 1) + ((b >> drop) & 1)) >> drop;

	return (NUMBERS(y) >> 24 & 0x80) | vn_pick(MASK(a < rebias + (1 << 23)), small, normal);
}

FN vf minifloat_level(const struct minifloat f, vn code)
{
	vf a = FLOATS((code & 0x7f) << (23 - f.mantissa)) * FLOATS(vn_all((254 - f.bias) << 23));

	return FLOATS(NUMBERS(a) | (-(code >> 7 & 1) & INT32_MIN));
}

/* Returns the sign bits of x, the first lane's lowest. */
FN uint64_t signs_of(vn x)
{
	return vi_signs((vi)x);
}

#ifndef PACKS
/* Packs the codes of a group that lie in a byte each. */
FN void pack(uint8_t *codes, const uint8_t bytes[RWK_CODED], int bits)
{
	const int each = 8 / bits;

	for (int j = 0; j < RWK_CODED / each; j++) {
		uint32_t all = 0;

		for (int l = 0; l < each; l++)
			all |= (bytes[each * j + l] & ((1U << bits) - 1)) << (l * bits);
		codes[j] = (uint8_t)all;
	}
}
#endif

/* Counts x and what is lost of it. The residual becomes that; the reference gains what is sent. */
FN void settle(const vf x[PARTS], const vf sent[PARTS], const struct rwk_encoding *e, uint64_t i, vf energy[PARTS], vf lost[PARTS])
{
	float *memory = rwk_at(e->memory, RWK_F32, i);
	vf left[PARTS];

	for (int v = 0; v < PARTS; v++) {
		left[v] = x[v] - sent[v];
		energy[v] = energy[v] + x[v] * x[v];
		lost[v] = lost[v] + left[v] * left[v];
	}
	if (e->memory && e->reference)
		for (int v = 0; v < PARTS; v++)
			vf_store(memory + v * WIDTH, vf_load(memory + v * WIDTH) + sent[v]);
	else if (e->memory)
		for (int v = 0; v < PARTS; v++)
			vf_store(memory + v * WIDTH, left[v]);
}

/* Codes the groups [from, to) of a block. */
FN void code_groups(int codec, int stochastic, const struct rwk_encoding *e, uint64_t from, uint64_t to, struct rwk_block *b)
{
	const uint32_t inverse_bits = bits_of(b->scale);
	const vf scale = vf_all(b->scale), inverse = vf_all(inverse_bits ? float_of((254U << 23) - inverse_bits) : 0);
	const vf integer = vf_all(0x1.8p23f), top = vf_all(codec == RWK_CODEC_INT4 ? 7 : 127), zero = vf_all(0);
	const struct minifloat f = minifloat_of(codec);
	const int bits = rwk_codec_bits(codec);
	vf energy[PARTS], lost[PARTS];
	uint8_t *codes = b->codes;
	const float *u = b->uniforms;

	for (int v = 0; v < PARTS; v++) {
		energy[v] = vf_load(b->energy + v * WIDTH);
		lost[v] = vf_load(b->lost + v * WIDTH);
	}
	for (uint64_t i = from; i < to; i += RWK_CODED, codes += bits * RWK_CODED / 8, u += RWK_CODED) {
#ifndef PACKS
		uint8_t bytes[RWK_CODED];
#endif
		uint64_t signs = 0;
		vf x[PARTS], sent[PARTS];

		inputs(x, e, i);
		for (int v = 0; v < PARTS; v++) {
			vf y = x[v] * inverse;
			vn code = {0}, is;

			switch (codec) {
			case RWK_CODEC_INT8:
			case RWK_CODEC_INT4:
				if (stochastic)
					y = y + vf_load(u + v * WIDTH);
				code = NUMBERS(y + integer);
				sent[v] = (y + integer) - integer;
				if (stochastic) { /* the floor, of what was rounded */
					is = MASK(sent[v] > y);
					sent[v] = sent[v] - FLOATS(is & NUMBERS(vf_all(1)));
					is = MASK(sent[v] > top);
					sent[v] = FLOATS(vn_pick(is, NUMBERS(top), NUMBERS(sent[v])));
					code = NUMBERS(sent[v] + integer);
				}
				sent[v] = sent[v] * scale;
				break;
			case RWK_CODEC_FP8_E4M3:
			case RWK_CODEC_FP8_E5M2:
				code = minifloat_code(f, y);
				sent[v] = zero + minifloat_level(f, code) * scale;
				break;
			case RWK_CODEC_SIGN:
				signs |= signs_of(NUMBERS(x[v])) << (v * WIDTH);
				sent[v] = zero + FLOATS(NUMBERS(scale) | (NUMBERS(x[v]) & INT32_MIN));
				break;
			case RWK_CODEC_2BIT:
			case RWK_CODEC_TERNARY:
				if (codec == RWK_CODEC_2BIT)
					is = MASK(magnitude(x[v]) >= NUMBERS(scale));
				else
					is = MASK(magnitude(vf_load(u + v * WIDTH) * scale) < magnitude(x[v]));
				code = is & (1 | (NUMBERS(x[v]) >> 30 & 2));
				sent[v] = zero + FLOATS(is & (NUMBERS(scale) | (NUMBERS(x[v]) & INT32_MIN)));
				break;
			}
#ifdef PACKS
			if (bits > 1)
				vi_pack(codes + v * WIDTH * bits / 8, (vi)code, bits);
#else
			if (bits > 1)
				vi_bytes(bytes + v * WIDTH, (vi)code);
#endif
		}
#ifndef PACKS
		if (bits > 1)
			pack(codes, bytes, bits);
#endif
		if (bits == 1)
			memcpy(codes, &signs, sizeof signs);
		settle(x, sent, e, i, energy, lost);
	}
	for (int v = 0; v < PARTS; v++) {
		vf_store(b->energy + v * WIDTH, energy[v]);
		vf_store(b->lost + v * WIDTH, lost[v]);
	}
}

LOOP void code(const struct rwk_encoding *e, uint64_t from, uint64_t to, struct rwk_block *b)
{
	switch (e->codec) {
	case RWK_CODEC_INT8:
		if (e->stochastic)
			code_groups(RWK_CODEC_INT8, 1, e, from, to, b);
		else
			code_groups(RWK_CODEC_INT8, 0, e, from, to, b);
		break;
	case RWK_CODEC_INT4:
		if (e->stochastic)
			code_groups(RWK_CODEC_INT4, 1, e, from, to, b);
		else
			code_groups(RWK_CODEC_INT4, 0, e, from, to, b);
		break;
	case RWK_CODEC_SIGN:
		code_groups(RWK_CODEC_SIGN, 0, e, from, to, b);
		break;
	case RWK_CODEC_2BIT:
		code_groups(RWK_CODEC_2BIT, 0, e, from, to, b);
		break;
	case RWK_CODEC_TERNARY:
		code_groups(RWK_CODEC_TERNARY, 0, e, from, to, b);
		break;
	case RWK_CODEC_FP8_E4M3:
		code_groups(RWK_CODEC_FP8_E4M3, 0, e, from, to, b);
		break;
	case RWK_CODEC_FP8_E5M2:
		code_groups(RWK_CODEC_FP8_E5M2, 0, e, from, to, b);
		break;
	}
}

/* Sets a bit for each element of groups whose magnitude has bits from least to most. */
LOOP void between(const float *x, uint64_t groups, int32_t least, int32_t most, uint64_t *are)
{
	for (uint64_t i = 0; i < groups; i++, x += RWK_CODED) {
		are[i] = 0;
		for (int v = 0; v < PARTS; v++) {
			vn bits = magnitude(vf_load(x + v * WIDTH));

			are[i] |= signs_of(MASK(bits >= least) & MASK(bits <= most)) << (v * WIDTH);
		}
	}
}

/* Ends groups of top-k, whose values to send are known. */
LOOP void settle_groups(const struct rwk_encoding *e, uint64_t from, uint64_t to, const float *x, const float *sent,
			struct rwk_block *b)
{
	vf energy[PARTS], lost[PARTS];

	for (int v = 0; v < PARTS; v++) {
		energy[v] = vf_load(b->energy + v * WIDTH);
		lost[v] = vf_load(b->lost + v * WIDTH);
	}
	for (uint64_t i = from; i < to; i += RWK_CODED, x += RWK_CODED, sent += RWK_CODED) {
		vf from_x[PARTS], from_sent[PARTS];

		for (int v = 0; v < PARTS; v++) {
			from_x[v] = vf_load(x + v * WIDTH);
			from_sent[v] = vf_load(sent + v * WIDTH);
		}
		settle(from_x, from_sent, e, i, energy, lost);
	}
	for (int v = 0; v < PARTS; v++) {
		vf_store(b->energy + v * WIDTH, energy[v]);
		vf_store(b->lost + v * WIDTH, lost[v]);
	}
}

/*
 * Returns the words that hold the codes of the vector v of a group, and in shift how far below its code, as the bits of a word from
 * the lowest on, each lane has others.
 */
FN vn words_of(const uint8_t *group, int bits, int v, vn *shift)
{
	const int begin = v * WIDTH * bits;
	uint32_t word;
	vn words;

	memcpy(&word, group + begin / 32 * 4, sizeof word);
	words = vn_all((int32_t)word);
#if WIDTH == 1
	*shift = begin % 32;
#else
	for (int l = 0; l < WIDTH; l++)
		(*shift)[l] = (begin + l * bits) % 32;
#if WIDTH == 16
	if (bits == 4) {
		memcpy(&word, group + begin / 32 * 4 + 4, sizeof word);
		words = (vn)_mm512_mask_set1_epi32((vi)words, 0xff00, (int32_t)word);
	}
#endif
#endif
	return words;
}

/*
 * Returns the factor of a source's levels in a block; or, where a vector has a lane for each code, the codes' values, which are
 * looked up by the lowest bits of a lane.
 */
FN vf factor_of(int codec, float scale)
{
	const int down = 32 - rwk_codec_bits(codec);
	vf factor = vf_all(1);

	(void)down;
#ifdef LOOKUP
	if (LOOKUP(rwk_codec_bits(codec)) && codec != RWK_CODEC_SIGN)
		for (int l = 0; l < WIDTH; l++)
			factor[l] = (float)((int32_t)((uint32_t)l << down) >> down);
#endif
	return factor * vf_all(scale);
}

/*
 * Adds the values of the vector v of a group to a sum. It may multiply and add at once: products are exact, because scales that
 * levels other than -1, 0 and 1 have are powers of two.
 */
FN vf plus_values(vf sum, int codec, const uint8_t *group, int v, vf factor)
{
	const int bits = rwk_codec_bits(codec);
	vn shift = {0}, words;

	if (bits == 8) {
		words = (vn)vi_widen(group + v * WIDTH);
		if (codec == RWK_CODEC_INT8)
			return vf_add_product(sum, CONVERT(words, vf), factor);
		return vf_add_product(sum, minifloat_level(minifloat_of(codec), words), factor);
	}
	words = words_of(group, bits, v, &shift);
	if (codec == RWK_CODEC_SIGN)
		return sum + FLOATS(NUMBERS(factor) ^ (vn_up(words, 31 - shift) & INT32_MIN));
#ifdef LOOKUP
	if (LOOKUP(bits))
		return sum + vf_lookup((vi)(words >> shift), factor);
#endif
	return vf_add_product(sum, CONVERT(vn_up(words, 32 - bits - shift) >> (32 - bits), vf), factor);
}

FN void fold_sources(int codec, float *x, const struct rwk_codes *in, int count, uint64_t n, int more)
{
	const int bytes = rwk_codec_bits(codec) * RWK_CODED / 8;
	const uint8_t *codes[RWK_TOGETHER];

	for (int j = 0; j < count; j++)
		codes[j] = in[j].codes;
	for (uint64_t from = 0, to; from < n; from = to) {
		vf factor[RWK_TOGETHER];

		to = n - from < RWK_CODEC_BLOCK ? n : from + RWK_CODEC_BLOCK;
		for (int j = 0; j < count; j++) {
			float one;

			memcpy(&one, in[j].scales + from / RWK_CODEC_BLOCK * sizeof one, sizeof one);
			factor[j] = factor_of(codec, one);
		}
		for (uint64_t i = from; i < to; i += RWK_CODED) {
			vf sum[PARTS];

			for (int v = 0; v < PARTS; v++)
				sum[v] = more ? vf_load(x + i + v * WIDTH) : vf_all(0);
			for (int j = 0; j < count; j++) {
				for (int v = 0; v < PARTS; v++)
					sum[v] = plus_values(sum[v], codec, codes[j], v, factor[j]);
				if (bytes >= RWK_LINE / 2)
					__builtin_prefetch(codes[j] + RWK_AHEAD);
				codes[j] += bytes;
			}
			for (int v = 0; v < PARTS; v++)
				vf_store(x + i + v * WIDTH, sum[v]);
		}
	}
}

FN void fold_counted(int codec, float *x, const struct rwk_codes *in, uint32_t count, uint64_t n, int more)
{
	if (count == 4)
		fold_sources(codec, x, in, 4, n, more);
	else if (count == 2)
		fold_sources(codec, x, in, 2, n, more);
	else
		fold_sources(codec, x, in, 1, n, more);
}

LOOP void fold(int codec, float *x, const struct rwk_codes *in, uint32_t count, uint64_t n, int more)
{
	switch (codec) {
	case RWK_CODEC_INT8:
		fold_counted(RWK_CODEC_INT8, x, in, count, n, more);
		break;
	case RWK_CODEC_INT4:
		fold_counted(RWK_CODEC_INT4, x, in, count, n, more);
		break;
	case RWK_CODEC_SIGN:
		fold_counted(RWK_CODEC_SIGN, x, in, count, n, more);
		break;
	case RWK_CODEC_2BIT:
	case RWK_CODEC_TERNARY:
		fold_counted(RWK_CODEC_TERNARY, x, in, count, n, more);
		break;
	case RWK_CODEC_FP8_E4M3:
		fold_counted(RWK_CODEC_FP8_E4M3, x, in, count, n, more);
		break;
	case RWK_CODEC_FP8_E5M2:
		fold_counted(RWK_CODEC_FP8_E5M2, x, in, count, n, more);
		break;
	}
}

#define RWK_CODERS                                                                                                                 \
	{                                                                                                                          \
		.fold = fold, .inputs = gather_inputs, .bounds = bounds, .uniforms = uniforms, .code = code, .between = between,   \
		.settle = settle_groups                                                                                            \
	}
