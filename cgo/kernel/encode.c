/* Encodes chunks: whole groups where they lie, the last elements in copies that zeros make a group. */
#include "ops.h"

#include <math.h>

enum { GROUPS = RWK_CODEC_BLOCK / RWK_CODED };

#define LEAST_UNBOUNDED 0x7e800000 /* the bits of 2^126: a chunk with a magnitude from here on travels raw */

/* A chunk's encoding. last are its last elements, if they are not a whole group, with zeros behind them. */
struct encoder {
	const struct rwk_coders *ops;
	const struct rwk_encoding *chunk;
	struct rwk_encoding last;
	uint64_t groups; /* elements before the last */
	uint8_t *payload;
	uint64_t kept, bytes;
	int bitmap;
	_Alignas(RWK_LINE) char values[RWK_CODED * sizeof(float)];
	float memory[RWK_CODED];
};

/* Finds how many elements top-k keeps, and the payload's length. */
static void measure(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	uint64_t n = e->n, raw = n * sizeof(float), bytes = raw;

	if (e->codec == RWK_CODEC_TOPK) {
		double k = round(e->param * (double)n);

		s->kept = k < 1 ? 1 : k > (double)n ? n : (uint64_t)k;
		s->bitmap = (n + 7) / 8 < 2 * s->kept || n > 1 << 16;
		bytes = RWK_CODEC_HEADER + 4 * s->kept + (s->bitmap ? (n + 7) / 8 : 2 * s->kept);
	} else if (e->codec != RWK_CODEC_NONE) {
		bytes = RWK_CODEC_HEADER + 4 * rwk_codec_blocks(n) + (n * rwk_codec_bits(e->codec) + 7) / 8;
	}
	s->bytes = bytes < raw ? bytes : raw;
}

static void copy_last(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	uint64_t rest = e->n - s->groups;

	s->last = *e;
	s->last.values = (uintptr_t)s->values;
	memset(s->values, 0, sizeof s->values);
	memcpy(s->values, rwk_at(e->values, e->type, s->groups), rest * rwk_size(e->type));
	if (e->memory) {
		s->last.memory = (uintptr_t)s->memory;
		memset(s->memory, 0, sizeof s->memory);
		memcpy(s->memory, rwk_at(e->memory, RWK_F32, s->groups), rest * sizeof(float));
	}
}

static float float_at(const uint8_t *p)
{
	float x;

	memcpy(&x, p, sizeof x);
	return x;
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

/* Finds the scale of each block. Returns 0 if an element is not below 2^126. */
static int scales(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;

	for (uint64_t from = 0, to; from < e->n; from = to) {
		float part[RWK_CODED] = {0};

		to = e->n - from < RWK_CODEC_BLOCK ? e->n : from + RWK_CODEC_BLOCK;
		int32_t most = s->ops->bounds(e, from, to < s->groups ? to : s->groups, part);

		if (to > s->groups) {
			int32_t last = s->ops->bounds(&s->last, 0, RWK_CODED, part);

			most = last > most ? last : most;
		}
		if (most >= LEAST_UNBOUNDED)
			return 0;
		if (s->bytes < e->n * sizeof(float))
			put_float(s->payload + RWK_CODEC_HEADER + from / RWK_CODEC_BLOCK * 4, scale_of(e, most, part, to - from));
	}
	return 1;
}

static void write_header(const struct encoder *s, struct rwk_block *b)
{
	const struct rwk_encoding *e = s->chunk;
	const uint8_t head[4] = {e->codec, RWK_CODEC_VERSION, s->bitmap ? RWK_CODEC_BITMAP : 0, 0};
	uint32_t count = (uint32_t)(e->codec == RWK_CODEC_TOPK ? s->kept : e->n);

	memcpy(s->payload, head, sizeof head);
	memcpy(s->payload + 4, &count, sizeof count);
	put_float(s->payload + 8, total(b->energy));
	put_float(s->payload + 12, total(b->lost));
}

/* Adds the sums of the last elements, without the zeros behind them, and copies back what they left in memory. */
static void end_last(const struct encoder *s, struct rwk_block *b, const struct rwk_block *last)
{
	const struct rwk_encoding *e = s->chunk;
	uint64_t rest = e->n - s->groups;

	for (uint64_t j = 0; j < rest; j++) {
		b->energy[j] += last->energy[j];
		b->lost[j] += last->lost[j];
	}
	if (e->memory)
		memcpy(rwk_at(e->memory, RWK_F32, s->groups), s->memory, rest * sizeof(float));
}

static void code_blocks(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	const int bits = rwk_codec_bits(e->codec), random = e->stochastic || e->codec == RWK_CODEC_TERNARY;
	uint8_t *codes = s->payload + RWK_CODEC_HEADER + 4 * rwk_codec_blocks(e->n), rest[RWK_CODED];
	float u[RWK_CODEC_BLOCK + RWK_CODED];
	struct rwk_block b = {0}, last = {0};

	for (uint64_t from = 0, to; from < e->n; from = to) {
		uint64_t element = e->first + from;

		to = e->n - from < RWK_CODEC_BLOCK ? e->n : from + RWK_CODEC_BLOCK;
		if (random)
			s->ops->uniforms(e, element / 4, RWK_CODEC_BLOCK / 4 + (element % 4 ? 16 : 0), u);
		b.scale = float_at(s->payload + RWK_CODEC_HEADER + from / RWK_CODEC_BLOCK * 4);
		b.codes = codes + from * bits / 8;
		b.uniforms = u + element % 4;
		s->ops->code(e, from, to < s->groups ? to : s->groups, &b);
		if (to > s->groups) {
			last.scale = b.scale;
			last.codes = rest;
			last.uniforms = b.uniforms + (s->groups - from);
			s->ops->code(&s->last, 0, RWK_CODED, &last);
			memcpy(codes + s->groups * bits / 8, rest, ((to - s->groups) * bits + 7) / 8);
			end_last(s, &b, &last);
		}
	}
	write_header(s, &b);
}

/* The largest magnitudes: all with bits above least, and as many with just these as there is room for. */
struct largest {
	int32_t least;
	uint64_t equal;
};

/* Calls a function with each block's inputs. The last group of the chunk has zeros behind n elements. */
#define EACH_BLOCK(s, x, from, n) for (uint64_t from = 0, n; from < (s)->chunk->n && (n = block_inputs(s, from, x)); from += n)

static uint64_t block_inputs(struct encoder *s, uint64_t from, float x[RWK_CODEC_BLOCK])
{
	const struct rwk_encoding *e = s->chunk;
	uint64_t to = e->n - from < RWK_CODEC_BLOCK ? e->n : from + RWK_CODEC_BLOCK;

	s->ops->inputs(e, from, to < s->groups ? to : s->groups, x);
	if (to > s->groups)
		s->ops->inputs(&s->last, 0, RWK_CODED, x + (s->groups - from));
	return to - from;
}

/* Sets a bit for each of n elements whose magnitude has bits from least to most. */
static void members(const struct encoder *s, const float *x, uint64_t n, int32_t least, int32_t most, uint64_t are[GROUPS])
{
	uint64_t groups = (n + RWK_CODED - 1) / RWK_CODED;

	s->ops->between(x, groups, least, most, are);
	if (n % RWK_CODED)
		are[groups - 1] &= (1ULL << n % RWK_CODED) - 1;
}

/*
 * Finds the largest magnitudes by histograms of the highest bits, then of the next among elements that have the bits found so far.
 * Returns 0 if an element is not below 2^126.
 */
static int find_largest(struct encoder *s, struct largest *l)
{
	static const struct {
		int shift, width;
	} levels[] = {{20, 11}, {10, 10}, {0, 10}};
	_Alignas(RWK_LINE) float x[RWK_CODEC_BLOCK];
	uint64_t missing = s->kept;
	int32_t prefix = 0;

	for (int level = 0; level < 3; level++) {
		int shift = levels[level].shift, bucket = 1 << levels[level].width;
		int32_t mask = bucket - 1, most = level > 0 ? prefix + (bucket << shift) - 1 : 0;
		uint32_t histogram[1 << 11] = {0}, odd[1 << 11] = {0}; /* a counter waits for its last store */
		uint64_t are[GROUPS];

		EACH_BLOCK(s, x, from, n)
		{
			if (level == 0) {
				for (uint64_t i = 0; i + 1 < n; i += 2) {
					histogram[bits_of(x[i]) >> shift & mask]++;
					odd[bits_of(x[i + 1]) >> shift & mask]++;
				}
				if (n % 2)
					histogram[bits_of(x[n - 1]) >> shift & mask]++;
				continue;
			}
			members(s, x, n, prefix, most, are);
			for (uint64_t i = 0; i < n; i += RWK_CODED)
				for (uint64_t is = are[i / RWK_CODED]; is; is &= is - 1)
					histogram[bits_of(x[i + (uint64_t)__builtin_ctzll(is)]) >> shift & mask]++;
		}
		for (int j = 0; level == 0 && j < bucket; j++)
			histogram[j] += odd[j];
		for (int high = LEAST_UNBOUNDED >> 20; level == 0 && high < bucket; high++)
			if (histogram[high])
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

static void code_largest(struct encoder *s, struct largest l)
{
	const struct rwk_encoding *e = s->chunk;
	_Alignas(RWK_LINE) float x[RWK_CODEC_BLOCK], sent[RWK_CODEC_BLOCK];
	uint8_t *values = s->payload + RWK_CODEC_HEADER, *indexes = values + 4 * s->kept;
	struct rwk_block b = {0}, last = {0};
	uint64_t k = 0, are[GROUPS];

	memset(values, 0, s->bytes - RWK_CODEC_HEADER);
	EACH_BLOCK(s, x, from, n)
	{
		memset(sent, 0, sizeof sent);
		members(s, x, n, l.least, INT32_MAX, are);
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
		uint64_t whole = n - n % RWK_CODED;

		s->ops->settle(e, from, from + whole, x, sent, &b);
		if (whole < n) {
			s->ops->settle(&s->last, 0, RWK_CODED, x + whole, sent + whole, &last);
			end_last(s, &b, &last);
		}
	}
	write_header(s, &b);
}

/* Sends the values as they are, and makes a reference of them. */
static void send_values(struct encoder *s, int isa)
{
	const struct rwk_encoding *e = s->chunk;

	rwk_convert(isa, (uintptr_t)s->payload, RWK_F32, e->values, e->type, e->n, 0);
	if (e->memory && e->reference)
		memcpy((void *)(uintptr_t)e->memory, s->payload, s->bytes);
}

/* Sends the values with the residual, which leaves none. */
static void flush(struct encoder *s)
{
	const struct rwk_encoding *e = s->chunk;
	float x[RWK_CODED];

	s->ops->inputs(e, 0, s->groups, (float *)(uintptr_t)e->payload);
	if (e->n > s->groups) {
		s->ops->inputs(&s->last, 0, RWK_CODED, x);
		memcpy(s->payload + s->groups * sizeof *x, x, (e->n - s->groups) * sizeof *x);
	}
	if (e->memory)
		memset((void *)(uintptr_t)e->memory, 0, s->bytes);
}

uint64_t rwk_encode(int isa, const struct rwk_encoding *e)
{
	struct encoder s = {.ops = &rwk_ops_of(isa)->coded,
			    .chunk = e,
			    .groups = rwk_whole(e->n, RWK_CODED),
			    .payload = (uint8_t *)(uintptr_t)e->payload};
	uint64_t raw = e->n * sizeof(float);
	struct largest l = {0};

	if (e->codec >= RWK_CODECS)
		return 0;
	measure(&s);
	copy_last(&s);
	if (s.bytes < raw && e->codec == RWK_CODEC_TOPK ? find_largest(&s, &l) : scales(&s)) {
		if (s.bytes < raw && e->codec == RWK_CODEC_TOPK)
			code_largest(&s, l);
		else if (s.bytes < raw)
			code_blocks(&s);
		else if (e->reference)
			send_values(&s, isa);
		else
			flush(&s);
	} else {
		s.bytes = raw;
		send_values(&s, isa);
	}
	return s.bytes;
}
