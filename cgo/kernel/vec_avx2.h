/* Vectors of eight: AVX2 with F16C. */
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c")))
#define FN static inline __attribute__((always_inline)) TARGET
#define LOOP static TARGET
#define NOINLINE static __attribute__((noinline)) TARGET
#define WIDTH 8

typedef __m256 vf;

FN vf vf_all(float x)
{
	return _mm256_set1_ps(x);
}

FN vf vf_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

FN void vf_store(float *p, vf x)
{
	_mm256_storeu_ps(p, x);
}

FN vf vf_sqrt(vf x)
{
	return _mm256_sqrt_ps(x);
}

/* x limited to ±bound; a NaN passes: min and max return their second operand when they cannot compare. */
FN vf vf_clip(vf x, vf bound)
{
	return _mm256_max_ps(-bound, _mm256_min_ps(bound, x));
}

FN vf vf_load_bf16(const uint16_t *p)
{
	__m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

FN __m128i to_bf16(vf x)
{
	__m256i b = _mm256_castps_si256(x), high = _mm256_srli_epi32(b, 16);
	__m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
	__m256i round = _mm256_srli_epi32(_mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
	__m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
	__m256i h = _mm256_blendv_epi8(round, quiet, nan);

	return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08));
}

FN void vf_store_bf16(uint16_t *p, vf x)
{
	_mm_storeu_si128((__m128i *)p, to_bf16(x));
}

FN vf vf_load_f16(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

FN void vf_store_f16(uint16_t *p, vf x)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

FN void vf_stream(float *p, vf x)
{
	_mm256_stream_ps(p, x);
}

FN void vf_stream_bf16(uint16_t *p, vf x)
{
	_mm_stream_si128((__m128i *)p, to_bf16(x));
}

FN void vf_stream_f16(uint16_t *p, vf x)
{
	_mm_stream_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

FN void vf_fence(void)
{
	_mm_sfence();
}

/* Keeps the load of x, and hides from the compiler that it is unchanged. */
FN vf vf_touch(vf x)
{
	__asm__ volatile("" : "+x"(x));
	return x;
}

typedef __m256d vsq;
#define SQ_VECTORS 4

FN vsq vsq_load(const double *p)
{
	return _mm256_loadu_pd(p);
}

FN void vsq_store(double *p, vsq x)
{
	_mm256_storeu_pd(p, x);
}

FN vsq vsq_widen(const float *p)
{
	return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
