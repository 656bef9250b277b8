/* What must hold of a payload before its values are read. */
#include "ops.h"

#include <float.h>
#include <math.h>

static const float levels[] = RWK_CODEC_LEVELS;

static float float_at(const unsigned char *p)
{
	float x;

	memcpy(&x, p, sizeof x);
	return x;
}

/* Reports whether a value is at least 0 and not above a bound. A NaN is not. */
static int within(float x, float most)
{
	return x >= 0 && x <= most;
}

uint32_t rwk_hash(const float *x, uint64_t n)
{
	uint32_t part[8] = {0}, h = 0;

	for (uint64_t i = 0; i < n; i++)
		part[i % 8] = (part[i % 8] ^ bits_of(x[i])) * 0x01000193u;
	for (int i = 0; i < 8; i++)
		h = (h ^ part[i]) * 0x01000193u;
	return h;
}

const char *rwk_check(const void *payload, uint64_t bytes, uint64_t n, uint64_t *form)
{
	const unsigned char *p = payload, *scales = p + RWK_CODEC_HEADER;
	uint32_t count;
	uint8_t id;

	*form = 0;
	if (bytes == n * sizeof(float))
		return NULL;
	if (bytes < RWK_CODEC_HEADER || bytes > n * sizeof(float))
		return "it is shorter than a header, or longer than raw values";
	if (p[3] & RWK_CODEC_HASH)
		bytes -= sizeof(uint32_t);
	id = p[0];
	memcpy(&count, p + 4, sizeof count);
	if (p[1] != RWK_CODEC_VERSION)
		return "it has another version";
	if (id >= RWK_CODECS || rwk_codec_bits(id) == 0)
		return "its codec is unknown, or sparse";
	if (p[2] || p[3] & ~(RWK_CODEC_MORE | RWK_CODEC_HASH))
		return "it has unknown flags";
	if (!within(float_at(p + 8), INFINITY) || !within(float_at(p + 12), INFINITY))
		return "its sums of squares are not positive";
	if (count != n || bytes != rwk_codec_bytes(id, n))
		return "its length is not that of its codec";
	for (uint64_t i = 0; i < rwk_codec_blocks(n); i++) {
		const float scale = float_at(scales + 4 * i);

		if (!within(scale, FLT_MAX / levels[id]))
			return "a scale is negative or not finite, or too large";
		if (levels[id] > 2 && bits_of(scale) << 9)
			return "a scale is not a power of two";
	}
	*form = id | (uint64_t)count << 32;
	return NULL;
}
