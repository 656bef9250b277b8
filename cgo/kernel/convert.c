/* Casts and copies: whole vectors by the instruction set, the rest by the scalar kernels. */
#include "ops.h"

uint64_t rwk_before_line(uint64_t addr, int dtype, uint64_t n)
{
	uint64_t head = (-addr & (RWK_LINE - 1)) / rwk_size(dtype);

	return head < n ? head : n;
}

/* Moves any type as f32 words, because a copy must not change a NaN. */
static void stream_copy(const struct rwk_ops *ops, uint64_t dst, uint64_t src, uint64_t bytes)
{
	uint64_t head = -dst & (RWK_LINE - 1);

	if (head > bytes)
		head = bytes;
	uint64_t body = rwk_whole(bytes - head, RWK_LINE);

	memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, head);
	ops->convert(dst + head, RWK_F32, src + head, RWK_F32, 0, body / sizeof(float), 1);
	memcpy((void *)(uintptr_t)(dst + head + body), (const void *)(uintptr_t)(src + head + body), bytes - head - body);
}

void rwk_convert(int isa, uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t n, int past_cache)
{
	const struct rwk_ops *ops;

	if (dst_type == src_type && !past_cache) {
		memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n * rwk_size(src_type));
		return;
	}
	ops = rwk_ops_of(isa);
	if (dst_type == src_type) {
		stream_copy(ops, dst, src, n * rwk_size(src_type));
	} else {
		uint64_t head = past_cache ? rwk_before_line(dst, dst_type, n) : 0;
		uint64_t body = head + rwk_whole(n - head, past_cache ? RWK_LINE / rwk_size(dst_type) : ops->width);

		rwk_ops_scalar.convert(dst, dst_type, src, src_type, 0, head, 0);
		ops->convert(dst, dst_type, src, src_type, head, body, past_cache);
		rwk_ops_scalar.convert(dst, dst_type, src, src_type, body, n, 0);
	}
	if (past_cache)
		ops->fence();
}
