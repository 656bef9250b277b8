/*
 * Adds payloads to sums. Their memory may change after they were checked, so all that bounds a read or a write comes from their
 * forms.
 */
#include "ops.h"

static struct rwk_codes codes_of(const struct rwk_sources *in, uint32_t j, uint64_t n, uint64_t from, int bits)
{
	const uint8_t *scales = (const uint8_t *)(uintptr_t)in->addr[j] + RWK_CODEC_HEADER;

	return (struct rwk_codes){scales + from / RWK_CODEC_BLOCK * 4, scales + rwk_codec_blocks(n) * 4 + from * bits / 8};
}

/* Adds 1, 2 or 4 sources. The codes of the last elements are copied to where zeros make them a group. */
static void fold_together(const struct rwk_ops *ops, int codec, const struct rwk_sources *in, uint32_t j, uint32_t count,
			  uint64_t n, float *x, uint64_t from, uint64_t to, int more)
{
	const int bits = rwk_codec_bits(codec);
	uint64_t whole = from + rwk_whole(to - from, RWK_CODED);
	uint8_t last[RWK_TOGETHER][RWK_CODED] = {0};
	struct rwk_codes codes[RWK_TOGETHER] = {0};

	for (uint32_t i = 0; i < count; i++)
		codes[i] = codes_of(in, j + i, n, from, bits);
	ops->coded.fold(codec, x, codes, count, whole - from, more);
	if (whole == to)
		return;
	for (uint32_t i = 0; i < count; i++) {
		codes[i] = codes_of(in, j + i, n, whole, bits);
		memcpy(last[i], codes[i].codes, ((to - whole) * bits + 7) / 8);
		codes[i].codes = last[i];
	}
	ops->coded.fold(codec, x + (whole - from), codes, count, RWK_CODED, more);
}

static uint16_t index_at(const uint8_t *indexes, uint64_t i)
{
	return ((const volatile uint16_t *)indexes)[i]; /* read once: it is bounded, then used */
}

/* Adds the values that k sorted indexes name. */
static void scatter_indexed(const uint8_t *values, uint64_t k, float *x, uint64_t from, uint64_t to)
{
	const uint8_t *indexes = values + 4 * k;
	uint64_t next = 0;

	while (next < k && index_at(indexes, next) < from)
		next++;
	for (; next < k; next++) {
		uint64_t i = index_at(indexes, next) - from;
		float v;

		if (i >= to - from)
			break;
		memcpy(&v, values + 4 * next, sizeof v);
		x[i] += v;
	}
}

/* Adds the values that a bitmap of n elements names. */
static void scatter_mapped(const uint8_t *values, uint64_t k, uint64_t n, float *x, uint64_t from, uint64_t to)
{
	const uint8_t *map = values + 4 * k;
	uint64_t next = 0, word;

	for (uint64_t i = 0; i < from; i += 64) {
		memcpy(&word, map + i / 8, sizeof word);
		next += (uint64_t)__builtin_popcountll(word);
	}
	for (uint64_t i = from; i < to; i += 64) {
		word = 0;
		memcpy(&word, map + i / 8, n - i < 64 ? (n - i + 7) / 8 : sizeof word);
		for (; word; word &= word - 1, next++) {
			uint64_t at = i + (uint64_t)__builtin_ctzll(word);
			float v;

			if (at >= to || next >= k)
				return;
			memcpy(&v, values + 4 * next, sizeof v);
			x[at - from] += v;
		}
	}
}

/* Fetches the first lines of all sources at once. */
static void fetch_ahead(const struct rwk_sources *in, uint64_t bytes)
{
	for (uint32_t j = 0; j < in->count; j++)
		for (uint64_t at = 0; at < bytes && at < RWK_AHEAD; at += RWK_LINE)
			__builtin_prefetch((const char *)(uintptr_t)in->addr[j] + at);
}

void rwk_fold(const struct rwk_ops *ops, const struct rwk_sources *in, uint64_t n, float *x, uint64_t from, uint64_t to, int more)
{
	const int codec = (int)(in->form[0] & 0xff);

	if (from == 0)
		fetch_ahead(in, codec == RWK_CODEC_TOPK ? 6 * (in->form[0] >> 32) : n * (uint64_t)rwk_codec_bits(codec) / 8);
	if (codec == RWK_CODEC_TOPK) {
		if (!more)
			memset(x, 0, (to - from) * sizeof *x);
		for (uint32_t j = 0; j < in->count; j++) {
			const uint8_t *values = (const uint8_t *)(uintptr_t)in->addr[j] + RWK_CODEC_HEADER;
			uint64_t k = in->form[j] >> 32;

			if (in->form[j] >> 8 & RWK_CODEC_BITMAP)
				scatter_mapped(values, k, n, x, from, to);
			else
				scatter_indexed(values, k, x, from, to);
		}
		return;
	}
	for (uint32_t j = 0, count; j < in->count; j += count) {
		uint32_t left = in->count - j;

		count = left >= RWK_TOGETHER ? RWK_TOGETHER : left >= 2 ? 2 : 1;
		fold_together(ops, codec, in, j, count, n, x, from, to, more || j > 0);
	}
}
