/*
 * Provider shm: copying a payload. It bypasses the cache if nobody reads the target soon, as in another process's arena. Ordinary
 * stores would read every line of the target first and then evict hot data from the cache. Within the cache, too, vector loops are
 * twice as fast as memcpy, which uses the processor's string instruction for chunks.
 */
#include "shm.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Copies whole lines of 64 bytes to a target aligned to 64, past the cache or not. The compiler makes two loops of each. */
#define INLINE static inline __attribute__((always_inline))

__attribute__((target("avx512f"))) INLINE void line_avx512(char *dst, const char *src, int past)
{
	__m512i a = _mm512_loadu_si512(src);

	if (past)
		_mm512_stream_si512((void *)dst, a);
	else
		_mm512_store_si512(dst, a);
}

__attribute__((target("avx2"))) INLINE void line_avx2(char *dst, const char *src, int past)
{
	__m256i a = _mm256_loadu_si256((const void *)src), b = _mm256_loadu_si256((const void *)(src + 32));

	if (past) {
		_mm256_stream_si256((void *)dst, a);
		_mm256_stream_si256((void *)(dst + 32), b);
	} else {
		_mm256_store_si256((void *)dst, a);
		_mm256_store_si256((void *)(dst + 32), b);
	}
}

/* Four lines a step. */
#define LINES(level, isa)                                                                                                          \
	__attribute__((target(isa))) INLINE void lines_##level(char *dst, const char *src, size_t n, int past)                     \
	{                                                                                                                          \
		for (; n >= 4; n -= 4, dst += 256, src += 256)                                                                     \
			for (int i = 0; i < 256; i += 64)                                                                          \
				line_##level(dst + i, src + i, past);                                                              \
		for (; n; n--, dst += 64, src += 64)                                                                               \
			line_##level(dst, src, past);                                                                              \
	}                                                                                                                          \
	__attribute__((target(isa))) static void copy_##level(char *dst, const char *src, size_t n, int past)                      \
	{                                                                                                                          \
		if (past)                                                                                                          \
			lines_##level(dst, src, n, 1);                                                                             \
		else                                                                                                               \
			lines_##level(dst, src, n, 0);                                                                             \
	}

LINES(avx512, "avx512f")
LINES(avx2, "avx2")

int shm_copy_level(void)
{
	if (__builtin_cpu_supports("avx512f"))
		return SHM_COPY_AVX512;
	return __builtin_cpu_supports("avx2") ? SHM_COPY_AVX2 : SHM_COPY_BASE;
}

/* Past the cache it ends with a fence, so that a descriptor published after it is seen after the payload. */
void shm_copy_with(int level, void *dst, const void *src, size_t n, int past)
{
	size_t head = -(uintptr_t)dst & 63, body;
	char *d = dst;
	const char *s = src;

	if (n < 1024 || level == SHM_COPY_BASE) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(d, s, head);
	d += head;
	s += head;
	body = (n - head) & ~(size_t)63;
	if (level == SHM_COPY_AVX512)
		copy_avx512(d, s, body / 64, past);
	else
		copy_avx2(d, s, body / 64, past);
	memcpy(d + body, s + body, n - head - body);
	if (past)
		_mm_sfence();
}
#else
int shm_copy_level(void)
{
	return SHM_COPY_BASE;
}

void shm_copy_with(int level, void *dst, const void *src, size_t n, int past)
{
	(void)level;
	(void)past;
	memcpy(dst, src, n);
}
#endif

void shm_copy(void *dst, const void *src, size_t n, int past)
{
	shm_copy_with(shm_copy_level(), dst, src, n, past);
}
