/* What one instruction set provides, and what the kernels share. Ranges of elements are [from, to). */
#ifndef RW_KERNEL_OPS_H
#define RW_KERNEL_OPS_H

#include "kernel.h"

#include <stddef.h>
#include <string.h>

/* GCC does not contract to FMA in ISO mode (-std=c11); Clang has to be told. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define RWK_LINE 64 /* bytes of a cache line */

/* The rule actually run: a public one, or the form it takes without momentum. */
enum { RWK_SGD_MXNET_PLAIN = RWK_RULES, RWK_SGD_TORCH_PLAIN, RWK_RMSPROP_TORCH_PLAIN, RWK_STEPS };

struct rwk_sum_args {
	uint64_t dst;
	const uint64_t *src;
	uint32_t nsrc;
	int dst_type, src_type, accumulate;
};

struct rwk_ops {
	uint32_t group, width; /* to - from must be a multiple of: group in sum and update, width in convert and stream */
	void (*sum)(const struct rwk_sum_args *a, uint64_t from, uint64_t to);
	void (*update)(const struct rwk_update *u, int step, uint64_t from, uint64_t to);
	/* The streaming ones need dst + from aligned to a cache line. */
	void (*convert)(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to);
	void (*stream)(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to);
	/* Adds the squares to 16 partial sums, element i to part[i % 16]; to - from must be a multiple of 16. */
	void (*sumsq)(double part[16], const float *x, uint64_t n);
	void (*probe)(const struct rwk_probe *p);
};

extern const struct rwk_ops rwk_ops_scalar;
#if defined(__x86_64__)
extern const struct rwk_ops rwk_ops_avx2, rwk_ops_avx512;
#elif defined(__aarch64__)
extern const struct rwk_ops rwk_ops_neon;
#endif

static inline uint32_t rwk_size(int dtype)
{
	return dtype == RWK_F32 ? 4 : 2;
}

/* The i-th element of an array of dtype; addr may be 0 if the result is not used. */
static inline void *rwk_at(uint64_t addr, int dtype, uint64_t i)
{
	return (void *)(uintptr_t)(addr + i * rwk_size(dtype));
}

#endif
