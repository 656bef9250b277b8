/* The interface of one instruction set, and code that the kernels share. Ranges of elements are [from, to). */
#ifndef RW_KERNEL_OPS_H
#define RW_KERNEL_OPS_H

#include "kernel.h"

#include <stddef.h>
#include <string.h>

/*
 * No product and sum may become an FMA, because results must not depend on the instruction set. The go command rejects the flag for
 * it.
 */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

static inline uint32_t bits_of(float x)
{
	uint32_t b;

	memcpy(&b, &x, sizeof b);
	return b;
}

static inline float float_of(uint32_t b)
{
	float x;

	memcpy(&x, &b, sizeof x);
	return x;
}

/* The functions of one instruction set, whose file defines TARGET. */
#define FN static inline __attribute__((always_inline)) TARGET
#define LOOP static TARGET
#define NOINLINE static __attribute__((noinline)) TARGET

#define RWK_LINE 64 /* bytes of a cache line */

/* The destination of a result: count arrays of a type. count may be 0. */
struct rwk_outputs {
	const uint64_t *addr;
	uint32_t count;
	uint8_t type, past_cache;
};

/* The summands. first, if not 0, is an f32 array that comes before the sources. */
struct rwk_sources {
	const uint64_t *addr;
	const uint64_t *form; /* of each, or NULL if all are elements of the type as they are */
	uint32_t count;
	int type;
	uint64_t first;
};

#define RWK_CODED 64     /* elements of a group of coded ones */
#define RWK_COUNTERS 144 /* of random numbers for a block, whose first element may be any of four that have a counter */

/*
 * Blocks of a chunk that is encoded, in whole groups. Element i counts in the partial sums of the squares of inputs and of what is
 * lost, energy[i % RWK_CODED] and lost[i % RWK_CODED].
 */
struct rwk_part {
	uint64_t n; /* elements, and zeros behind them */
	const float *values;
	float *memory, factor;
	int reference;
	const uint8_t *scales;
	uint8_t *codes;
	const float *uniforms; /* of each element, or what top-k sends of it */
	float energy[RWK_CODED], lost[RWK_CODED];
};

/* Scales and codes of a source, from the first element of a block on. */
struct rwk_codes {
	const uint8_t *scales, *codes;
};

/*
 * Bytes of a payload that are fetched ahead: measured from memory, 2048 beats 0, 512, 1024 and 4096. The hardware follows no stream
 * before some of its lines have missed, nor into another page, and payloads are short.
 */
#define RWK_AHEAD 2048
#define RWK_TOGETHER 4 /* coded sources that are added at once */

/* The codecs, over groups of RWK_CODED elements. from, to and n are multiples of that. */
struct rwk_coders {
	/* Adds 1, 2 or 4 sources of a codec to x[n], or to 0 unless more. */
	void (*fold)(int codec, float *x, const struct rwk_codes *in, uint32_t count, uint64_t n, int more);

	void (*inputs)(const struct rwk_part *p, float *x);
	/* Returns the bits of the largest magnitude of a block's inputs, and sets partial sums of the magnitudes. */
	int32_t (*bounds)(const struct rwk_part *p, float sums[RWK_CODED]);
	void (*uniforms)(const struct rwk_encoding *e, uint64_t counter, float u[4 * RWK_COUNTERS]);
	/* Writes the codes of the inputs, and what stays in memory. */
	void (*code)(int codec, int stochastic, struct rwk_part *p, uint64_t from, uint64_t to);
	/* Sets a bit for each element of groups whose magnitude has bits from least to most. */
	void (*between)(const float *x, uint64_t groups, int32_t least, int32_t most, uint64_t *are);
};

struct rwk_ops {
	uint32_t group, width; /* to - from must be a multiple of group in sum and update, of width in convert */
	void (*sum)(const struct rwk_outputs *out, const struct rwk_sources *in, uint64_t from, uint64_t to);
	void (*update)(int rule, const struct rwk_update *u, const struct rwk_outputs *out, const struct rwk_sources *in,
		       uint64_t from, uint64_t to);
	/* With past_cache it writes whole cache lines past the cache. fence orders them before all later stores. */
	void (*convert)(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to, int past_cache);
	void (*fence)(void);
	/* Adds the squares to 16 partial sums, element i to part[i % 16]. n must be a multiple of 16. */
	void (*sumsq)(double part[16], const float *x, uint64_t n);
	struct rwk_coders coded;
	void (*probe)(const struct rwk_probe *p, const uint64_t *arrays);
};

extern const struct rwk_ops rwk_ops_scalar;
#if defined(__x86_64__)
extern const struct rwk_ops rwk_ops_avx2, rwk_ops_avx512;
#elif defined(__aarch64__)
extern const struct rwk_ops rwk_ops_neon;
#endif

/* Returns the number of blocks in n elements. Each block has a scale. */
static inline uint64_t rwk_codec_blocks(uint64_t n)
{
	return (n + RWK_CODEC_BLOCK - 1) / RWK_CODEC_BLOCK;
}

/* Returns the bits of a codec's code. */
static inline int rwk_codec_bits(int codec)
{
#define RWK_BITS(name, bits, reach, stochastic) [RWK_CODEC_##name] = bits,
	static const uint8_t all[] = {RWK_EACH_CODEC(RWK_BITS)};
#undef RWK_BITS
	return all[codec];
}

/* Returns the length of a payload of n elements, for a codec that has codes. */
static inline uint64_t rwk_codec_bytes(int codec, uint64_t n)
{
	return RWK_CODEC_HEADER + 4 * rwk_codec_blocks(n) + (n * rwk_codec_bits(codec) + 7) / 8;
}

static inline uint32_t rwk_size(int dtype)
{
	return dtype == RWK_F32 ? 4 : 2;
}

/* Returns the i-th element of an array of dtype. addr may be 0 if the result is not used. */
static inline void *rwk_at(uint64_t addr, int dtype, uint64_t i)
{
	return (void *)(uintptr_t)(addr + i * rwk_size(dtype));
}

/* Returns the part of n that is a multiple of unit. */
static inline uint64_t rwk_whole(uint64_t n, uint32_t unit)
{
	return n - n % unit;
}

/* Returns the instruction set to run for isa, which is the best if the CPU lacks isa. */
const struct rwk_ops *rwk_ops_of(int isa);

/*
 * Adds the elements [from, to) of n of coded sources, all of one codec, to x; unless more, x becomes their sum. from is a
 * multiple of RWK_CODEC_BLOCK, x has room for whole groups of RWK_CODED, and no element of it is -0.
 */
void rwk_fold(const struct rwk_ops *ops, const struct rwk_sources *in, uint64_t n, float *x, uint64_t from, uint64_t to, int more);

/* Returns the number of states that the rule of u has. */
uint32_t rwk_states(const struct rwk_update *u);

/* Returns the number of elements before the first cache line of an array, at most n. */
uint64_t rwk_before_line(uint64_t addr, int dtype, uint64_t n);

#endif
