/*
 * Provider shm: copying a payload. It bypasses the cache if nobody reads the target soon, as in another process's arena. Ordinary
 * stores would read every line of the target first and then evict hot data from the cache. Within the cache, too, a vector loop is
 * twice as fast as memcpy, which uses the processor's string instruction for chunks.
 */
#include "shm.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Copies n bytes, a multiple of 64, to a target aligned to 64. Wider vectors do not copy faster: memory and cache set the pace. */
__attribute__((target("avx2"))) static void copy_lines(char *dst, const char *src, size_t n, int past)
{
	for (size_t i = 0; i < n; i += 64) {
		__m256i a = _mm256_loadu_si256((const void *)(src + i)), b = _mm256_loadu_si256((const void *)(src + i + 32));

		if (past) {
			_mm256_stream_si256((void *)(dst + i), a);
			_mm256_stream_si256((void *)(dst + i + 32), b);
		} else {
			_mm256_store_si256((void *)(dst + i), a);
			_mm256_store_si256((void *)(dst + i + 32), b);
		}
	}
}

/* Past the cache it ends with a fence, so that a descriptor published after it is seen after the payload. */
void shm_copy(void *dst, const void *src, size_t n, int past)
{
	size_t head = -(uintptr_t)dst & 63, body = (n - head) & ~(size_t)63;

	if (n < 1024 || !__builtin_cpu_supports("avx2")) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(dst, src, head);
	copy_lines((char *)dst + head, (const char *)src + head, body, past);
	memcpy((char *)dst + head + body, (const char *)src + head + body, n - head - body);
	if (past)
		_mm_sfence();
}
#else
void shm_copy(void *dst, const void *src, size_t n, int past)
{
	(void)past;
	memcpy(dst, src, n);
}
#endif
