/*
 * Vectors of WIDTH elements: eight by AVX2 with F16C and FMA, or sixteen by AVX-512 F, BW, VL, DQ. AVX512_BF16's cast is not used:
 * it flushes subnormals.
 */
#include <immintrin.h>

/* Names of intrinsics: V of a vector, H of half of one, VI and HI of one as integers. */
#if WIDTH == 8
#define TARGET __attribute__((target("avx2,f16c,fma")))
#define V(name) _mm256_##name
#define VI(name) _mm256_##name##_si256
#define H(name) _mm_##name
#define HI(name) _mm_##name##_si128
typedef __m256 vf;
typedef __m256i vi;
typedef __m128i vh;
typedef __m256d vsq;
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define V(name) _mm512_##name
#define VI(name) _mm512_##name##_si512
#define H(name) _mm256_##name
#define HI(name) _mm256_##name##_si256
typedef __m512 vf;
typedef __m512i vi;
typedef __m256i vh;
typedef __m512d vsq;
#endif
#define REGISTER "+v"
#define STREAMS

FN vi vi_max(vi x, vi y)
{
	return V(max_epi32)(x, y);
}

/* Returns the sign bits, the first lane's lowest. */
FN uint64_t vi_signs(vi x)
{
#if WIDTH == 8
	return (uint32_t)_mm256_movemask_ps((vf)x);
#else
	return _mm512_movepi32_mask(x);
#endif
}

/* Loads bytes with their signs. */
FN vi vi_widen(const void *p)
{
#if WIDTH == 8
	return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
	return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
#endif
}

/* Whether lanes hold a value for each code of so many bits. */
#define LOOKUP(bits) ((1 << (bits)) <= WIDTH)

/* Returns the lanes of x that the lowest bits of at name. */
FN vf vf_lookup(vi at, vf x)
{
#if WIDTH == 8
	return _mm256_permutevar8x32_ps(x, at);
#else
	return _mm512_permutexvar_ps(at, x);
#endif
}

/* Stores the lowest bits of the lanes of four vectors, 2, 4 or 8 of each, side by side. */
#define PACKS
FN void vi_pack(uint8_t *to, const vi x[4], int bits)
{
	enum { QUARTERS = WIDTH / 4 };
	const vi each = V(set1_epi8)((char)((1 << bits) - 1));
	int32_t order[WIDTH]; /* packs work within quarters of 128 bits */
	vi all = V(packs_epi16)(V(packs_epi32)(x[0], x[1]), V(packs_epi32)(x[2], x[3]));

	for (int l = 0; l < WIDTH; l++)
		order[l] = l % QUARTERS * 4 + l / QUARTERS;
	all = (vi)vf_lookup(VI(loadu)((const vi *)order), (vf)all);
	if (bits == 8) {
		VI(storeu)((vi *)to, all);
		return;
	}
	all = V(maddubs_epi16)(VI(and)(all, each), V(set1_epi16)(bits == 4 ? 0x1001 : 0x0401));
	if (bits == 2)
		all = V(madd_epi16)(all, V(set1_epi32)(0x00100001));
#if WIDTH == 8
	__m128i low = _mm256_castsi256_si128(all), high = _mm256_extracti128_si256(all, 1);

	if (bits == 4)
		_mm_storeu_si128((__m128i *)to, _mm_packus_epi16(low, high));
	else
		_mm_storel_epi64((__m128i *)to, _mm_packus_epi16(_mm_packs_epi32(low, high), low));
#else
	if (bits == 4)
		_mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(all));
	else
		_mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(all));
#endif
}

/* Returns sum + x * y, whose product is exact. */
FN vf vf_add_product(vf sum, vf x, vf y)
{
	return V(fmadd_ps)(x, y, sum);
}

FN vf vf_sqrt(vf x)
{
	return V(sqrt_ps)(x);
}

FN vf vf_floor(vf x)
{
	return V(floor_ps)(x);
}

/* Returns x limited to ±bound. A NaN passes, because min and max return their second operand when they cannot compare. */
FN vf vf_clip(vf x, vf bound)
{
	return V(max_ps)(-bound, V(min_ps)(bound, x));
}

FN vf vf_load_bf16(const uint16_t *p)
{
	return (vf)V(slli_epi32)(V(cvtepu16_epi32)(HI(loadu)((const vh *)p)), 16);
}

FN vh to_bf16(vf x)
{
	vi b = (vi)x, high = V(srli_epi32)(b, 16), odd = VI(and)(high, V(set1_epi32)(1));
	vi round = V(srli_epi32)(V(add_epi32)(b, V(add_epi32)(odd, V(set1_epi32)(0x7fff))), 16);
#if WIDTH == 8
	vi quiet = VI(or)(high, V(set1_epi32)(0x40));
	vi h = _mm256_blendv_epi8(round, quiet, (vi)_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

	return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08));
#else
	__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

	return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(round, nan, high, _mm512_set1_epi32(0x40)));
#endif
}

FN void vf_store_bf16(uint16_t *p, vf x)
{
	HI(storeu)((vh *)p, to_bf16(x));
}

FN vf vf_load_f16(const uint16_t *p)
{
	return V(cvtph_ps)(HI(loadu)((const vh *)p));
}

FN void vf_store_f16(uint16_t *p, vf x)
{
	HI(storeu)((vh *)p, V(cvtps_ph)(x, _MM_FROUND_TO_NEAREST_INT));
}

FN void vf_stream(float *p, vf x)
{
	V(stream_ps)(p, x);
}

FN void vf_stream_bf16(uint16_t *p, vf x)
{
	HI(stream)((vh *)p, to_bf16(x));
}

FN void vf_stream_f16(uint16_t *p, vf x)
{
	HI(stream)((vh *)p, V(cvtps_ph)(x, _MM_FROUND_TO_NEAREST_INT));
}

FN void vf_fence(void)
{
	_mm_sfence();
}

#define SQ_VECTORS (32 / WIDTH)

FN vsq vsq_widen(const float *p)
{
	return V(cvtps_pd)(H(loadu_ps)(p));
}
