/* What must hold of a payload before its values are read. */
#include "codecs.h"
#include "kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define BITS(name, bits, nearest, chance) bits,
static const uint8_t bits_of[] = {RWK_EACH_CODEC(BITS)};
#undef BITS
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
	uint32_t part[8] = {0}, h = 0, bits;

	for (uint64_t i = 0; i < n; i++) {
		memcpy(&bits, x + i, sizeof bits);
		part[i % 8] = (part[i % 8] ^ bits) * 0x01000193u;
	}
	for (int i = 0; i < 8; i++)
		h = (h ^ part[i]) * 0x01000193u;
	return h;
}

const char *rwk_check(const void *payload, uint64_t bytes, uint64_t n, uint64_t *form)
{
	const unsigned char *p = payload, *scales = p + RWK_CODEC_HEADER;
	const uint64_t blocks = (n + RWK_CODEC_BLOCK - 1) / RWK_CODEC_BLOCK;
	uint8_t id;
	uint32_t count;

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
	if (id >= RWK_CODECS || bits_of[id] == 0)
		return "its codec is unknown, or sparse";
	if (p[2] || p[3] & ~(RWK_CODEC_MORE | RWK_CODEC_HASH))
		return "it has unknown flags";
	if (!within(float_at(p + 8), INFINITY) || !within(float_at(p + 12), INFINITY))
		return "its sums of squares are not positive";
	if (count != n || bytes - RWK_CODEC_HEADER != 4 * blocks + (n * bits_of[id] + 7) / 8)
		return "its length is not that of its codec";
	for (uint64_t i = 0; i < blocks; i++) {
		uint32_t bits;

		if (!within(float_at(scales + 4 * i), FLT_MAX / levels[id]))
			return "a scale is negative or not finite, or too large";
		memcpy(&bits, scales + 4 * i, sizeof bits);
		if (levels[id] > 2 && bits << 9)
			return "a scale is not a power of two";
	}
	*form = id | (uint64_t)count << 32;
	return NULL;
}
