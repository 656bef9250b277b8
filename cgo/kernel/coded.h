/*
 * The codecs over groups of 64 elements, for a vector of any width. Package codec specifies their bits. An instruction set includes
 * this file after body.h.
 */
#define PARTS (RWK_CODED / WIDTH)
#define TOGETHER (WIDTH == 1 ? RWK_CODED : 4) /* vectors of a group that are encoded at once, in as many registers as AVX2 has */
#define STEP (TOGETHER * WIDTH)

#if WIDTH == 1
typedef int32_t vn; /* a vector of integers */
#define NUMBERS(x) ((int32_t)bits_of(x))
#define FLOATS(x) float_of((uint32_t)(x))
#define CONVERT(x, type) ((type)(x))
#define MASK(condition) (-(int32_t)(condition))
#define LEFT(x, by) ((int32_t)((uint32_t)(x) << (by)))
#else
typedef int32_t vn __attribute__((vector_size(4 * WIDTH)));
#define NUMBERS(x) ((vn)(x))
#define FLOATS(x) ((vf)(x))
#define CONVERT(x, type) __builtin_convertvector(x, type)
#define MASK(condition) ((vn)(condition))
#define LEFT(x, by) ((x) << (by)) /* of vectors it is defined for any sign */
#endif

FN vn vn_all(int32_t x)
{
	return x - (vn){0};
}

FN vn magnitude(vf x)
{
	return NUMBERS(x) & INT32_MAX;
}

/* Returns what a codec gets: a value with the residual, or less the reference. */
FN vf input(const float *values, const float *memory, vf factor, uint64_t i)
{
	return vf_load(values + i) + factor * vf_load(memory + i);
}

LOOP void inputs(const struct rwk_part *part, float *x)
{
	const struct rwk_part p = *part;

	for (uint64_t i = 0; i < p.n; i += RWK_CODED)
		for (int v = 0; v < RWK_CODED; v += WIDTH)
			vf_store(x + i + v, input(p.values, p.memory, vf_all(p.factor), i + v));
}

LOOP int32_t bounds(const struct rwk_part *part, float sums[RWK_CODED])
{
	const struct rwk_part p = *part;
	int32_t lanes[WIDTH], most = 0;
	vn all[TOGETHER] = {0};

	for (uint64_t first = 0; first < RWK_CODED; first += STEP) {
		vf sum[TOGETHER] = {0};

		for (uint64_t at = first; at < p.n; at += RWK_CODED) {
			for (uint64_t line = at; line < at + STEP; line += RWK_LINE / sizeof(float)) {
				__builtin_prefetch(p.values + line + RWK_AHEAD / 4);
				__builtin_prefetch(p.memory + line + RWK_AHEAD / 4, 1);
			}
			for (int v = 0; v < TOGETHER; v++) {
				vn x = magnitude(input(p.values, p.memory, vf_all(p.factor), at + v * WIDTH));

				all[v] = (vn)vi_max((vi)all[v], (vi)x);
				sum[v] = sum[v] + FLOATS(x);
			}
		}
		for (int v = 0; v < TOGETHER; v++)
			vf_store(sums + first + v * WIDTH, sum[v]);
	}
	vn largest = all[0];

	for (int v = 1; v < TOGETHER; v++)
		largest = (vn)vi_max((vi)largest, (vi)all[v]);
	memcpy(lanes, &largest, sizeof lanes);
	for (int l = 0; l < WIDTH; l++)
		most = lanes[l] > most ? lanes[l] : most;
	return most;
}

/* Draws four numbers in [0, 1) from each counter, of 24 bits, by Philox4x32-10. */
LOOP void uniforms(const struct rwk_encoding *e, uint64_t counter, float u[4 * RWK_COUNTERS])
{
	uint32_t c[4][RWK_COUNTERS], k0 = (uint32_t)e->seed, k1 = (uint32_t)(e->seed >> 32);

	for (uint32_t l = 0; l < RWK_COUNTERS; l++) {
		c[0][l] = (uint32_t)counter + l;
		c[1][l] = e->tensor;
		c[2][l] = e->step;
		c[3][l] = e->rank;
	}
	for (int round = 0; round < 10; round++, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
		for (int l = 0; l < RWK_COUNTERS; l++) {
			uint64_t p0 = 0xd2511f53ULL * c[0][l], p1 = 0xcd9e8d57ULL * c[2][l];

			c[0][l] = (uint32_t)(p1 >> 32) ^ c[1][l] ^ k0;
			c[2][l] = (uint32_t)(p0 >> 32) ^ c[3][l] ^ k1;
			c[1][l] = (uint32_t)p1;
			c[3][l] = (uint32_t)p0;
		}
	}
	for (int l = 0; l < RWK_COUNTERS; l++)
		for (int word = 0; word < 4; word++)
			u[4 * l + word] = (float)(int32_t)(c[word][l] >> 8) * 0x1p-24f;
}

/* A float of 8 bits: the length of its mantissa, and the exponent of its smallest normal number, as an f32 has it. */
struct minifloat {
	int mantissa, least;
};

FN struct minifloat minifloat_of(int codec)
{
	return codec == RWK_CODEC_FP8_E4M3 ? (struct minifloat){3, 121} : (struct minifloat){2, 113};
}

/* Returns the code of y, and its level. A number 1.5 * 2^23 times the last place rounds to that. */
FN vn minifloat_code(const struct minifloat f, vf y, vf *level)
{
	const int drop = 23 - f.mantissa;
	vn exponent = (vn)vi_max((vi)(NUMBERS(y) & 0x7f800000), (vi)vn_all(f.least << 23));
	vn round = exponent + (drop << 23 | 1 << 22);
	vf sum = FLOATS(magnitude(y)) + FLOATS(round);

	*level = FLOATS(NUMBERS(sum - FLOATS(round)) | (NUMBERS(y) & INT32_MIN));
	return (NUMBERS(sum) - round + (exponent >> drop) - (f.least << f.mantissa)) | (NUMBERS(y) >> 24 & ~0x7f);
}

/* Returns the level of a code with its sign in all higher bits. */
FN vf minifloat_level(const struct minifloat f, vn code)
{
	const int up = 23 - f.mantissa;

	return FLOATS(LEFT(code, up) & (INT32_MIN | 0x7f << up)) * FLOATS(vn_all((f.least + 126) << 23));
}

#ifndef PACKS
/* Stores the lowest bits of the lanes of vectors, 2, 4 or 8 of each, side by side. */
FN void vi_pack(uint8_t *to, const vi x[TOGETHER], int bits)
{
	int32_t lanes[STEP];

	memcpy(lanes, x, sizeof lanes);
	for (int j = 0; j < STEP * bits / 8; j++) {
		uint32_t all = 0;

		for (int l = 0; l < 8 / bits; l++)
			all |= ((uint32_t)lanes[8 / bits * j + l] & ((1U << bits) - 1)) << (l * bits);
		to[j] = (uint8_t)all;
	}
}
#endif

/* Codes the groups [from, to) of a block. */
FN void code_block(int codec, int stochastic, struct rwk_part *p, float of, uint64_t from, uint64_t to)
{
	const int bits = rwk_codec_bits(codec), reference = p->reference;
	const uint32_t scale_bits = bits_of(of);
	const vf scale = vf_all(of), less = vf_all(-of), factor = vf_all(p->factor), zero = vf_all(0);
	const vf inverse = vf_all(scale_bits ? float_of((254U << 23) - scale_bits) : 0);
	const vf integer = vf_all(0x1.8p23f), top = vf_all(codec == RWK_CODEC_INT4 ? 7 : 127);
	const vn one = NUMBERS(vf_all(scale_bits != 0)), sign = vn_all(scale_bits ? INT32_MIN : 0); /* 0 * -1 would be -0 */
	const float *values = p->values, *uniforms = p->uniforms;
	float *memory = p->memory;
	uint8_t *to_codes = p->codes;

	for (uint64_t first = 0; first < RWK_CODED; first += STEP) {
		vf energy[TOGETHER], lost[TOGETHER];

		for (int v = 0; v < TOGETHER; v++) {
			energy[v] = vf_load(p->energy + first + v * WIDTH);
			lost[v] = vf_load(p->lost + first + v * WIDTH);
		}
		for (uint64_t at = from + first; at < to; at += RWK_CODED) {
			uint64_t signs = 0;
			vi codes[TOGETHER];

			__builtin_prefetch(to_codes + at * bits / 8 + RWK_AHEAD / 4, 1);
			for (int v = 0; v < TOGETHER; v++) {
				uint64_t i = at + v * WIDTH;
				vf x = input(values, memory, factor, i), y, level = zero, left;
				vn code = {0}, is;

				switch (codec) {
				case RWK_CODEC_INT8:
				case RWK_CODEC_INT4:
					if (stochastic) {
						level = vf_clip(vf_floor(vf_add_product(vf_load(uniforms + i), x, inverse)), top);
						code = CONVERT(level, vn);
					} else {
						y = vf_add_product(integer, x, inverse);
						level = y - integer;
						code = NUMBERS(y) - NUMBERS(integer);
					}
					break;
				case RWK_CODEC_FP8_E4M3:
				case RWK_CODEC_FP8_E5M2:
					code = minifloat_code(minifloat_of(codec), x * inverse, &level);
					level = zero + level;
					break;
				case RWK_CODEC_SIGN:
					signs |= vi_signs((vi)NUMBERS(x)) << (v * WIDTH);
					level = FLOATS(one | (NUMBERS(x) & sign));
					break;
				case RWK_CODEC_2BIT:
				case RWK_CODEC_TERNARY:
					if (codec == RWK_CODEC_2BIT)
						is = MASK(magnitude(x) >= NUMBERS(scale));
					else
						is = MASK(magnitude(vf_load(uniforms + i) * scale) < magnitude(x));
					code = is & (1 | (NUMBERS(x) >> 30 & 2));
					level = FLOATS(is & (one | (NUMBERS(x) & sign)));
					break;
				case RWK_CODEC_TOPK:
					level = vf_load(uniforms + i);
					break;
				}
				codes[v] = (vi)code;
				left = vf_add_product(x, level, less);
				energy[v] = energy[v] + x * x;
				lost[v] = lost[v] + left * left;
				if (reference)
					left = vf_add_product(vf_load(memory + i), level, scale);
				vf_store(memory + i, left);
			}
			if (bits == 1)
				memcpy(to_codes + at / 8, &signs, STEP / 8);
			else if (bits)
				vi_pack(to_codes + at * bits / 8, codes, bits);
		}
		for (int v = 0; v < TOGETHER; v++) {
			vf_store(p->energy + first + v * WIDTH, energy[v]);
			vf_store(p->lost + first + v * WIDTH, lost[v]);
		}
	}
}

FN void code_as(int codec, int stochastic, struct rwk_part *p, uint64_t from, uint64_t to)
{
	for (uint64_t end; from < to; from = end) {
		const uint64_t block = from / RWK_CODEC_BLOCK;
		float scale;

		memcpy(&scale, p->scales + block * sizeof scale, sizeof scale);
		end = (block + 1) * RWK_CODEC_BLOCK < to ? (block + 1) * RWK_CODEC_BLOCK : to;
		code_block(codec, stochastic, p, scale, from, end);
	}
}

LOOP void code(int codec, int stochastic, struct rwk_part *p, uint64_t from, uint64_t to)
{
	switch (codec) {
#define CODE(name, ...)                                                                                                            \
	case RWK_CODEC_##name:                                                                                                     \
		if (stochastic && RWK_CODEC_##name <= RWK_CODEC_INT4)                                                              \
			code_as(RWK_CODEC_##name, 1, p, from, to);                                                                 \
		else                                                                                                               \
			code_as(RWK_CODEC_##name, 0, p, from, to);                                                                 \
		break;
		RWK_EACH_CODEC(CODE)
	}
}

/* Sets a bit for each element of groups whose magnitude has bits from least to most. */
LOOP void between(const float *x, uint64_t groups, int32_t least, int32_t most, uint64_t *are)
{
	for (uint64_t i = 0; i < groups; i++, x += RWK_CODED) {
		are[i] = 0;
		for (int v = 0; v < PARTS; v++) {
			vn bits = magnitude(vf_load(x + v * WIDTH));

			are[i] |= vi_signs((vi)(MASK(bits >= least) & MASK(bits <= most))) << (v * WIDTH);
		}
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
		return sum + FLOATS(NUMBERS(factor) ^ (LEFT(words, 31 - shift) & INT32_MIN));
#ifdef LOOKUP
	if (LOOKUP(bits))
		return sum + vf_lookup((vi)(words >> shift), factor);
#endif
	return vf_add_product(sum, CONVERT(LEFT(words, 32 - bits - shift) >> (32 - bits), vf), factor);
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
#define FOLD(name, bits, ...)                                                                                                      \
	case RWK_CODEC_##name:                                                                                                     \
		if (bits)                                                                                                          \
			fold_counted(RWK_CODEC_##name, x, in, count, n, more);                                                     \
		break;
		RWK_EACH_CODEC(FOLD)
	}
}

#define RWK_CODERS                                                                                                                 \
	{                                                                                                                          \
		.fold = fold, .inputs = inputs, .bounds = bounds, .uniforms = uniforms, .code = code, .between = between           \
	}
