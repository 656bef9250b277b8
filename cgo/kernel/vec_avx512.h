/* Vectors of sixteen: AVX-512 F, BW, VL, DQ. AVX512_BF16's cast is not used: it flushes subnormals. */
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define FN static inline __attribute__((always_inline)) TARGET
#define LOOP static TARGET
#define NOINLINE static __attribute__((noinline)) TARGET
#define WIDTH 16

typedef __m512 vf;

FN vf vf_all(float x)
{
	return _mm512_set1_ps(x);
}

FN vf vf_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

FN void vf_store(float *p, vf x)
{
	_mm512_storeu_ps(p, x);
}

FN vf vf_sqrt(vf x)
{
	return _mm512_sqrt_ps(x);
}

/* x limited to ±bound; a NaN passes: min and max return their second operand when they cannot compare. */
FN vf vf_clip(vf x, vf bound)
{
	return _mm512_max_ps(-bound, _mm512_min_ps(bound, x));
}

FN vf vf_load_bf16(const uint16_t *p)
{
	__m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

	return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}

FN __m256i to_bf16(vf x)
{
	__m512i b = _mm512_castps_si512(x), high = _mm512_srli_epi32(b, 16);
	__m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
	__m512i round = _mm512_srli_epi32(_mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
	__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

	return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(round, nan, high, _mm512_set1_epi32(0x40)));
}

FN void vf_store_bf16(uint16_t *p, vf x)
{
	_mm256_storeu_si256((__m256i *)p, to_bf16(x));
}

FN vf vf_load_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

FN void vf_store_f16(uint16_t *p, vf x)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

FN void vf_stream(float *p, vf x)
{
	_mm512_stream_ps(p, x);
}

FN void vf_stream_bf16(uint16_t *p, vf x)
{
	_mm256_stream_si256((__m256i *)p, to_bf16(x));
}

FN void vf_stream_f16(uint16_t *p, vf x)
{
	_mm256_stream_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

FN void vf_fence(void)
{
	_mm_sfence();
}

/* Keeps the load of x, and hides from the compiler that it is unchanged. */
FN vf vf_touch(vf x)
{
	__asm__ volatile("" : "+v"(x));
	return x;
}

typedef __m512d vsq;
#define SQ_VECTORS 2

FN vsq vsq_load(const double *p)
{
	return _mm512_loadu_pd(p);
}

FN void vsq_store(double *p, vsq x)
{
	_mm512_storeu_pd(p, x);
}

FN vsq vsq_widen(const float *p)
{
	return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
