/* What one instruction set provides, and what the kernels share. Ranges of elements are [from, to). */
#ifndef RW_KERNEL_OPS_H
#define RW_KERNEL_OPS_H

#include "kernel.h"

#include <stddef.h>
#include <string.h>

/*
 * No product and sum may become an FMA: results must not depend on the instruction set. The go command lets no flag for it through.
 */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define RWK_LINE 64 /* bytes of a cache line */

/* Where a result goes: count arrays of a type, which may be none. */
struct rwk_outputs {
	const uint64_t *addr;
	uint32_t count;
	uint8_t type, stream;
};

/* What is summed: first, if not 0, is an f32 array that stands before the sources. */
struct rwk_sources {
	const uint64_t *addr;
	uint32_t count;
	int type;
	uint64_t first;
};

struct rwk_ops {
	uint32_t group, width; /* to - from must be a multiple of group in sum and update, of width in convert */
	void (*sum)(const struct rwk_outputs *out, const struct rwk_sources *in, uint64_t from, uint64_t to);
	void (*update)(int rule, const struct rwk_update *u, const struct rwk_outputs *out, const struct rwk_sources *in,
		       uint64_t from, uint64_t to);
	void (*convert)(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to);
	/* Writes whole cache lines past the cache; fence orders them before all later stores. */
	void (*stream)(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to);
	void (*fence)(void);
	/* Adds the squares to 16 partial sums, element i to part[i % 16]; n must be a multiple of 16. */
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

/* The part of n that is a multiple of unit. */
static inline uint64_t rwk_whole(uint64_t n, uint32_t unit)
{
	return n - n % unit;
}

/* The instruction set to run for isa: the best where the CPU lacks it. */
const struct rwk_ops *rwk_ops_of(int isa);

/* The elements before the first cache line of an array, at most n. */
uint64_t rwk_before_line(uint64_t addr, int dtype, uint64_t n);

#endif
