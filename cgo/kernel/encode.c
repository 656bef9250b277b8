/* Encodes chunks. */
#include "ops.h"

#include <math.h>

enum { GROUPS = RWK_CODEC_BLOCK / RWK_CODED };

#define LEAST_UNBOUNDED 0x7e800000 /* the bits of 2^126: a chunk with a magnitude from here on travels raw */

struct encoder {
	const struct rwk_coders *ops;
	const struct rwk_encoding *chunk;
	int isa, bitmap;
	uint8_t *payload;
	uint64_t kept, bytes;
	struct rwk_part part;
	float values[RWK_CODEC_BLOCK], memory[RWK_CODEC_BLOCK]; /* copies of a block */
	uint8_t codes[RWK_CODEC_BLOCK];
};

/* Finds how many elements top-k keeps, and the payload's length. */
static void measure(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	uint64_t n = e->n, raw = n * sizeof(float), bytes = raw;

	s->bitmap = 0;
	if (e->codec == RWK_CODEC_TOPK) {
		double k = round(e->param * (double)n);

		s->kept = k < 1 ? 1 : k > (double)n ? n : (uint64_t)k;
		s->bitmap = (n + 7) / 8 < 2 * s->kept || n > 1 << 16;
		bytes = RWK_CODEC_HEADER + 4 * s->kept + (s->bitmap ? (n + 7) / 8 : 2 * s->kept);
	} else if (e->codec != RWK_CODEC_NONE) {
		bytes = rwk_codec_bytes(e->codec, n);
	}
	s->bytes = bytes < raw ? bytes : raw;
}

static float *memory_at(const struct encoder *s, uint64_t i)
{
	return rwk_at(s->chunk->memory, RWK_F32, i);
}

/*
 * Takes blocks from an element on, at least one and at most so many elements. Values of 16 bits are copied, and so is a last block
 * that ends in a part of a group, which zeros fill.
 */
static struct rwk_part *take(struct encoder *s, uint64_t from, uint64_t most)
{
	const struct rwk_encoding *e = s->chunk;
	struct rwk_part *p = &s->part;
	uint64_t left = e->n - from, whole = rwk_whole(left < most ? left : most, RWK_CODEC_BLOCK);
	uint64_t n = left < RWK_CODEC_BLOCK ? left : e->type == RWK_F32 ? whole : RWK_CODEC_BLOCK;

	p->n = n;
	p->values = rwk_at(e->values, e->type, from);
	p->memory = memory_at(s, from);
	if (e->type != RWK_F32 || n % RWK_CODED) {
		memset(s->values, 0, sizeof s->values);
		rwk_convert(s->isa, (uintptr_t)s->values, RWK_F32, (uintptr_t)p->values, e->type, n, 0);
		p->values = s->values;
	}
	if (n % RWK_CODED) {
		memset(s->memory, 0, sizeof s->memory);
		p->memory = memcpy(s->memory, p->memory, n * sizeof(float));
	}
	return p;
}

/* Codes what was taken. What is behind its last element counts for nothing. */
static void code_part(struct encoder *s, uint64_t from, uint8_t *codes)
{
	const struct rwk_encoding *e = s->chunk;
	struct rwk_part *p = &s->part;
	uint64_t whole = rwk_whole(p->n, RWK_CODED), rest = p->n - whole;
	float lost[RWK_CODED];

	p->codes = rest ? s->codes : codes;
	s->ops->code(e->codec, e->stochastic, p, 0, whole);
	if (rest) {
		memcpy(lost, p->lost, sizeof lost);
		s->ops->code(e->codec, e->stochastic, p, whole, whole + RWK_CODED);
		memcpy(p->lost + rest, lost + rest, sizeof lost - rest * sizeof *lost);
		memcpy(codes, s->codes, (p->n * rwk_codec_bits(e->codec) + 7) / 8);
		memcpy(memory_at(s, from), s->memory, p->n * sizeof(float));
	}
}

static void put_float(uint8_t *p, float x)
{
	memcpy(p, &x, sizeof x);
}

/* Adds the partial sums in halves. */
static float total(float part[RWK_CODED])
{
	for (int half = RWK_CODED / 2; half > 0; half /= 2)
		for (int j = 0; j < half; j++)
			part[j] += part[j + half];
	return part[0];
}

/* Returns the smallest power of two that brings the bits of a magnitude within reach. */
static float power(const struct rwk_encoding *e, int32_t most)
{
#define REACH(name, bits, nearest, stochastic) [RWK_CODEC_##name] = {nearest, stochastic},
	static const uint32_t table[RWK_CODECS][2] = {RWK_EACH_CODEC(REACH)};
	uint32_t reach = table[e->codec][e->stochastic != 0], exponent = (reach >> 23) - 127;
	uint32_t least = ((uint32_t)most + 0x7fffff - (reach & 0x7fffff)) >> 23;

	return most ? float_of(((least > exponent ? least : exponent + 1) - exponent) << 23) : 0;
}

static float scale_of(const struct rwk_encoding *e, int32_t most, float part[RWK_CODED], uint64_t n)
{
	float mean;

	switch (e->codec) {
	case RWK_CODEC_SIGN:
		mean = total(part) / (float)n;
		return mean < 0x1p126f ? mean : 0x1p126f; /* the sum may overflow */
	case RWK_CODEC_2BIT:
		return (float)e->param;
	case RWK_CODEC_TERNARY:
		return float_of((uint32_t)most);
	default:
		return power(e, most);
	}
}

static void write_header(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	const uint8_t head[4] = {e->codec, RWK_CODEC_VERSION, s->bitmap ? RWK_CODEC_BITMAP : 0, 0};
	uint32_t count = (uint32_t)(e->codec == RWK_CODEC_TOPK ? s->kept : e->n);

	memcpy(s->payload, head, sizeof head);
	memcpy(s->payload + 4, &count, sizeof count);
	put_float(s->payload + 8, total(s->part.energy));
	put_float(s->payload + 12, total(s->part.lost));
}

/* Finds the scale of each block. Returns 0 if an element is not below 2^126. */
static int find_scales(struct encoder *s, uint8_t *scales)
{
	const struct rwk_encoding *e = s->chunk;

	for (uint64_t from = 0; from < e->n; from += RWK_CODEC_BLOCK, scales += sizeof(float)) {
		const struct rwk_part *p = take(s, from, RWK_CODEC_BLOCK);
		float sums[RWK_CODED];
		int32_t most = s->ops->bounds(p, sums);

		if (most >= LEAST_UNBOUNDED)
			return 0;
		put_float(scales, scale_of(e, most, sums, p->n));
	}
	return 1;
}

/* Reads a chunk twice, because a block's memory must stay if a later one is unbounded; but the second time from the cache. */
static int encode_blocks(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	const int bits = rwk_codec_bits(e->codec), random = e->stochastic || e->codec == RWK_CODEC_TERNARY;
	uint8_t *scales = s->payload + RWK_CODEC_HEADER, *codes = scales + 4 * rwk_codec_blocks(e->n);
	float u[4 * RWK_COUNTERS];

	if (!find_scales(s, scales))
		return 0;
	for (uint64_t from = 0; from < e->n; from += s->part.n) {
		const uint64_t element = e->first + from;
		struct rwk_part *p = take(s, from, random ? RWK_CODEC_BLOCK : UINT64_MAX);

		if (random)
			s->ops->uniforms(e, element / 4, u);
		p->uniforms = u + element % 4;
		p->scales = scales + from / RWK_CODEC_BLOCK * sizeof(float);
		code_part(s, from, codes + from * bits / 8);
	}
	write_header(s);
	return 1;
}

/* Sends the inputs as they are, and leaves no residual. A reference takes the values instead. */
static int flush(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	float x[RWK_CODEC_BLOCK], sums[RWK_CODED];

	for (uint64_t from = 0; from < e->n; from += RWK_CODEC_BLOCK) {
		struct rwk_part *p = take(s, from, RWK_CODEC_BLOCK);

		if (e->reference || s->ops->bounds(p, sums) >= LEAST_UNBOUNDED)
			return 0;
		s->ops->inputs(p, x);
		memcpy(s->payload + from * sizeof *x, x, p->n * sizeof *x);
	}
	memset(memory_at(s, 0), 0, s->bytes);
	return 1;
}

/* The largest magnitudes: all with bits above least, and as many with just these as there is room for. */
struct largest {
	int32_t least;
	uint64_t equal;
};

/* Computes the inputs of the block at an element, and sets a bit for each whose magnitude has bits from least to most. */
static uint64_t members(struct encoder *s, uint64_t from, float *x, int32_t least, int32_t most, uint64_t are[GROUPS])
{
	const struct rwk_part *p = take(s, from, RWK_CODEC_BLOCK);
	uint64_t groups = (p->n + RWK_CODED - 1) / RWK_CODED;

	s->ops->inputs(p, x);
	s->ops->between(x, groups, least, most, are);
	if (p->n % RWK_CODED)
		are[groups - 1] &= (1ULL << p->n % RWK_CODED) - 1;
	return p->n;
}

/*
 * Finds the largest magnitudes by histograms of the highest bits, then of the next among elements that have the bits found so far.
 * Returns 0 if an element is not below 2^126.
 */
static int find_largest(struct encoder *s, struct largest *l)
{
	uint64_t missing = s->kept, are[GROUPS], n;
	float x[RWK_CODEC_BLOCK];
	int32_t prefix = 0;

	for (int shift = 20; shift >= 0; shift -= 10) {
		const int first = shift == 20;
		int bucket = first ? 1 << 11 : 1 << 10;
		int32_t mask = bucket - 1, most = first ? 0 : prefix + (bucket << shift) - 1;
		uint32_t histogram[1 << 11] = {0}, odd[1 << 11] = {0}; /* a counter waits for its last store */

		for (uint64_t from = 0; from < s->chunk->n; from += RWK_CODEC_BLOCK) {
			n = members(s, from, x, prefix, most, are);
			for (uint64_t i = 1; i < n && first; i += 2) {
				histogram[bits_of(x[i - 1]) >> 20 & mask]++;
				odd[bits_of(x[i]) >> 20 & mask]++;
			}
			if (first && n % 2)
				odd[bits_of(x[n - 1]) >> 20 & mask]++;
			for (uint64_t i = 0; i < n && !first; i += RWK_CODED)
				for (uint64_t is = are[i / RWK_CODED]; is; is &= is - 1)
					histogram[bits_of(x[i + (uint64_t)__builtin_ctzll(is)]) >> shift & mask]++;
		}
		for (int j = 0; j < bucket; j++)
			histogram[j] += odd[j];
		for (int j = LEAST_UNBOUNDED >> 20; j < bucket; j++) /* of the highest bits */
			if (histogram[j])
				return 0;
		while (--bucket > 0 && histogram[bucket] < missing)
			missing -= histogram[bucket];
		prefix += bucket << shift;
		l->equal = missing;
		if (histogram[bucket] == missing) {
			l->equal = UINT64_MAX;
			break;
		}
	}
	l->least = prefix;
	return 1;
}

static int encode_largest(struct encoder *s)
{
	uint8_t *values = s->payload + RWK_CODEC_HEADER, *indexes = values + 4 * s->kept;
	uint64_t k = 0, are[GROUPS];
	struct largest l;
	uint8_t one[4];

	if (!find_largest(s, &l))
		return 0;
	put_float(one, 1);
	memset(values, 0, s->bytes - RWK_CODEC_HEADER);
	for (uint64_t from = 0; from < s->chunk->n; from += RWK_CODEC_BLOCK) {
		float x[RWK_CODEC_BLOCK], sent[RWK_CODEC_BLOCK] = {0};
		uint64_t n = members(s, from, x, l.least, INT32_MAX, are);

		for (uint64_t i = 0; i < n; i += RWK_CODED) {
			for (uint64_t is = are[i / RWK_CODED]; is && k < s->kept; is &= is - 1) {
				uint64_t at = i + (uint64_t)__builtin_ctzll(is), index = from + at;
				uint16_t short_index = (uint16_t)index;

				if ((bits_of(x[at]) & INT32_MAX) == (uint32_t)l.least && l.equal-- == 0) {
					l.equal = 0;
					continue;
				}
				sent[at] = 0 + x[at];
				put_float(values + 4 * k, x[at]);
				if (s->bitmap)
					indexes[index / 8] |= (uint8_t)(1 << index % 8);
				else
					memcpy(indexes + 2 * k, &short_index, sizeof short_index);
				k++;
			}
		}
		s->part.scales = one;
		s->part.uniforms = sent;
		code_part(s, from, indexes);
	}
	write_header(s);
	return 1;
}

uint64_t rwk_encode(int isa, const struct rwk_encoding *e)
{
	const uint64_t raw = e->n * sizeof(float);
	struct encoder s;
	int done;

	if (e->codec >= RWK_CODECS)
		return 0;
	s.ops = &rwk_ops_of(isa)->coded;
	s.chunk = e;
	s.payload = (uint8_t *)(uintptr_t)e->payload;
	s.isa = isa;
	s.part.factor = e->reference ? -1 : e->factor;
	s.part.reference = e->reference;
	memset(s.part.energy, 0, sizeof s.part.energy);
	memset(s.part.lost, 0, sizeof s.part.lost);
	measure(&s);
	if (s.bytes == raw)
		done = flush(&s);
	else if (e->codec == RWK_CODEC_TOPK)
		done = encode_largest(&s);
	else
		done = encode_blocks(&s);
	if (!done) { /* the values travel, without a residual */
		s.bytes = raw;
		rwk_convert(isa, e->payload, RWK_F32, e->values, e->type, e->n, 0);
		if (e->reference)
			memcpy(memory_at(&s, 0), s.payload, raw);
	}
	return s.bytes;
}
