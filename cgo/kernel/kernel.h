/*
 * SIMD kernels of the aggregating core: sums over workers, optimizer updates fused into the same pass, casts, norms.
 *
 * Every kernel exists as scalar, and as AVX2 and AVX-512 or as NEON. All give the bits of the Go reference in aggregate/optim:
 * sums run over the sources in index order, ((s0 + s1) + s2) + …, in f32, and nothing is contracted to FMA. n counts elements
 * and may be anything. Pointers need only the alignment of their element. A NaN is a NaN in all of them, but its sign and payload
 * are unspecified. An isa that the CPU lacks runs as rwk_best.
 */
#ifndef RW_KERNEL_H
#define RW_KERNEL_H

#include "table.h"

#include <stdint.h>

enum rwk_isa { RWK_SCALAR = 0, RWK_AVX2 = 1, RWK_AVX512 = 2, RWK_NEON = 3, RWK_ISAS };
enum rwk_dtype { RWK_F32 = 1, RWK_BF16 = 2, RWK_F16 = 3 };

/* The update rules: aggregate/optim names the source of each formula. */
#define RWK_NUMBER(name, step, w, states, plain) RWK_##name,
enum rwk_rule { RWK_EACH_RULE(RWK_NUMBER) RWK_RULES };
#undef RWK_NUMBER

/*
 * rwk_best returns the fastest instruction set that this CPU supports; rwk_built and rwk_supported tell which the build has, and
 * which of them the CPU supports.
 */
int rwk_best(void);
int rwk_built(int isa);
int rwk_supported(int isa);

/*
 * Writes the sum of nsrc sources, at least one, to each of ndst destinations. dst and src hold addresses. With accumulate the
 * destinations are f32, and the first one stands before the first source: folding a prefix and accumulating the rest gives
 * the bits of one sum. A destination may be one of the sources of its type. With stream the destinations are written past the
 * cache, in whole lines, and are visible to other cores on return.
 */
void rwk_sum(int isa, const uint64_t *dst, uint32_t ndst, int dst_type, const uint64_t *src, uint32_t nsrc, int src_type,
	     uint64_t n, int accumulate, int stream);

/* One fused pass: sums the sources, updates w and the states, and writes the result to each of nout outputs. */
struct rwk_update {
	uint64_t w;        /* f32[n], updated in place; RWK_SUM does not touch it, RWK_LAMB only reads it */
	uint64_t state[3]; /* f32[n] each, as many as the rule has; with RWK_K_MOMENTUM 0 an SGD has none */
	uint64_t src;      /* uint64_t[nsrc]: addresses of the gradients, src_type[n] each */
	uint64_t out;      /* uint64_t[nout]: addresses of the outputs, out_type[n] each: the new w; of RWK_SUM the scaled
	                      * sum, of RWK_LAMB the step */
	uint64_t n;
	uint32_t nsrc, nout; /* nsrc is at least 1, nout may be 0 */
	uint8_t src_type, out_type, rule;
	uint8_t stream;            /* write the outputs past the cache; they are visible to other cores on return */
	float scalar[RWK_SCALARS]; /* what the rule needs, derived from hyper-parameters and step by aggregate/optim */
};
/* Returns 0, -1 where the rule is unknown, or -2 where w or a state that the rule needs is 0. */
int rwk_update(int isa, const struct rwk_update *u);

/* Casts src to dst, rounding to nearest even. With streaming dst is written past the cache; it is visible on return. */
void rwk_convert(int isa, void *dst, int dst_type, const void *src, int src_type, uint64_t n, int streaming);

/* Returns the sum of squares in f64, over 16 interleaved partial sums added in a fixed tree: the same bits at every width. */
double rwk_sumsq(int isa, const float *x, uint64_t n);

/*
 * A memory probe, the roofline of the kernels: in one pass it reads the first nread arrays, reads and writes back (through
 * the cache) the next nupdate, and writes the last nwrite past the cache, with no arithmetic between. bytes is the length
 * of each array, cut down to whole cache lines; every array starts on one.
 */
struct rwk_probe {
	uint64_t array; /* uint64_t[nread + nupdate + nwrite]: addresses */
	uint64_t bytes;
	uint32_t nread, nupdate, nwrite, reserved;
};
void rwk_probe(int isa, const struct rwk_probe *p);

#endif
