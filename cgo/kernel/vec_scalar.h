/* A vector of one in plain C, for any CPU. It is also the specification of the casts, bit by bit. */
#include <math.h>

#define TARGET
#define REGISTER "+m"
#define WIDTH 1

typedef float vf;
typedef int32_t vi;

FN vi vi_max(vi x, vi y)
{
	return x > y ? x : y;
}

/* Returns the sign bits, the first lane's lowest. */
FN uint64_t vi_signs(vi x)
{
	return (uint32_t)x >> 31;
}

FN vi vi_widen(const void *p)
{
	return *(const int8_t *)p;
}

/* Returns sum + x * y, whose product is exact. */
FN vf vf_add_product(vf sum, vf x, vf y)
{
	return sum + x * y;
}

FN vf vf_sqrt(vf x)
{
	return sqrtf(x);
}

FN vf vf_floor(vf x)
{
	return floorf(x);
}

/* Returns x limited to ±bound. A NaN passes. */
FN vf vf_clip(vf x, vf bound)
{
	x = bound < x ? bound : x;
	return -bound > x ? -bound : x;
}

FN vf vf_load_bf16(const uint16_t *p)
{
	return float_of((uint32_t)*p << 16);
}

FN void vf_store_bf16(uint16_t *p, vf x)
{
	uint32_t b = bits_of(x);

	*p = (uint16_t)(x != x ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16);
}

FN vf vf_load_f16(const uint16_t *p)
{
	uint32_t sign = (uint32_t)(*p & 0x8000) << 16, exp = *p >> 10 & 0x1f, frac = *p & 0x3ff;

	if (exp == 0x1f)
		return float_of(sign | (frac ? 0x7fc00000 | frac << 13 : 0x7f800000));
	if (exp == 0) /* frac * 2^-24, exact */
		return float_of(sign | bits_of((float)frac * 0x1p-24f));
	return float_of(sign | (exp + 127 - 15) << 23 | frac << 13);
}

FN void vf_store_f16(uint16_t *p, vf x)
{
	uint32_t b = bits_of(x), sign = b >> 16 & 0x8000;

	b &= 0x7fffffff;
	if (b > 0x7f800000)
		b = 0x7e00 | (b >> 13 & 0x3ff);
	else if (b >= 0x477ff000) /* 65520 and more round to infinity */
		b = 0x7c00;
	else if (b < 0x38800000) /* below 2^-14: adding 0.5 rounds to a multiple of 2^-24 */
		b = bits_of(float_of(b) + 0.5f) - bits_of(0.5f);
	else
		b = (b - ((127 - 15) << 23) + 0xfff + (b >> 13 & 1)) >> 13;
	*p = (uint16_t)(sign | b);
}

typedef double vsq;
#define SQ_VECTORS 16

FN vsq vsq_widen(const float *p)
{
	return *p;
}
