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

#include "codecs.h"
#include "rows.h"
#include "table.h"

#include <stdint.h>

enum rwk_isa { RWK_SCALAR = 0, RWK_AVX2 = 1, RWK_AVX512 = 2, RWK_NEON = 3, RWK_ISAS };
enum rwk_dtype { RWK_F32 = 1, RWK_BF16 = 2, RWK_F16 = 3 };

/* The update rules: aggregate/optim names the source of each formula. */
#define RWK_NUMBER(name, step, w, states, plain) RWK_##name,
enum rwk_rule { RWK_EACH_RULE(RWK_NUMBER) RWK_RULES };
#undef RWK_NUMBER

int rwk_best(void);         /* the fastest instruction set that this CPU supports */
int rwk_supported(int isa); /* whether the build has it and the CPU supports it */

/*
 * Writes the sum of nsrc sources, at least one, to each of ndst destinations. dst and src hold addresses. form, if not NULL, has
 * the form of each source: 0 for elements of src_type, otherwise that of a payload of f32 (package codec), which only its form
 * bounds, so that it may change after its check. With accumulate the destinations are f32, and the first one comes before the first
 * source, so that folding a prefix and accumulating the rest gives the bits of one sum. A destination may be one of the sources of
 * its type. With past_cache the destinations are written past the cache, in whole lines, and are visible to other cores on return.
 */
void rwk_sum(int isa, const uint64_t *dst, uint32_t ndst, int dst_type, const uint64_t *src, const uint64_t *form, uint32_t nsrc,
	     int src_type, uint64_t n, int accumulate, int past_cache);

/* A fused pass sums the sources, updates w and the states, and writes the result to each of nout outputs. */
struct rwk_update {
	uint64_t w;        /* f32[n], updated in place; RWK_SUM does not use it, RWK_LAMB only reads it */
	uint64_t state[3]; /* f32[n] each, as many as the rule has; with RWK_K_MOMENTUM 0 an SGD has none */
	uint64_t n;
	uint8_t src_type, out_type, rule;
	uint8_t past_cache;        /* write the outputs past the cache; they are visible to other cores on return */
	float scalar[RWK_SCALARS]; /* derived from hyper-parameters and step by aggregate/optim */
};
/*
 * Updates with nsrc gradients, at least one, src_type[n] each. Each of nout outputs, out_type[n], gets the new w; of RWK_SUM the
 * scaled sum, of RWK_LAMB the step. src and out hold addresses. Returns 0, or -1 if the rule is unknown or w or a state is 0
 * that the rule needs.
 */
int rwk_update(int isa, const struct rwk_update *u, const uint64_t *src, const uint64_t *form, uint32_t nsrc, const uint64_t *out,
	       uint32_t nout);

#define RWK_CODEC(name, bits, reach, stochastic) RWK_CODEC_##name,
enum rwk_codec { RWK_EACH_CODEC(RWK_CODEC) };
#undef RWK_CODEC

/* A chunk to encode, as package codec specifies. The random numbers follow seed, step, tensor, rank and first, as its Key. */
struct rwk_encoding {
	uint64_t values;  /* type[n] */
	uint64_t memory;  /* f32[n], the residual or the reference */
	uint64_t payload; /* room for f32[n] at any address, for which nothing else may be used */
	uint64_t n;
	uint64_t seed, first;
	double param; /* of 2BIT the threshold, of TOPK the share of the elements */
	uint32_t step, tensor, rank;
	float factor; /* of the residual */
	uint8_t type, codec, stochastic;
	uint8_t reference; /* whether memory is a reference */
};
/*
 * Writes the payload of values + factor*memory, and stores what it loses in memory. With reference it writes the payload of
 * values - memory, and adds what it sends to memory. Returns the payload's length, or 0 if the codec is unknown. No byte behind the
 * payload is written.
 */
uint64_t rwk_encode(int isa, const struct rwk_encoding *e);

/*
 * Casts the n elements at src into those at dst, rounding to nearest even. With past_cache dst is written past the cache, and is
 * visible on return.
 */
void rwk_convert(int isa, uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t n, int past_cache);

/*
 * Checks the payload of n elements, except top-k's, as codec.Check does, and sets its form. Returns NULL, or what is wrong with it.
 * A form that was checked stays safe to read by, whatever becomes of the payload.
 */
const char *rwk_check(const void *payload, uint64_t bytes, uint64_t n, uint64_t *form);
/* Returns the hash of f32[n] that codec.AddHash appends. */
uint32_t rwk_hash(const float *x, uint64_t n);

/* Returns the sum of squares of f32[n] in f64, over 16 interleaved partial sums added in a fixed tree: the same bits everywhere. */
double rwk_sumsq(int isa, uint64_t x, uint64_t n);

/*
 * A memory probe is the roofline of the kernels. In one pass it reads the first nread arrays, reads and writes back (through the
 * cache) the next nupdate, and writes the last nwrite past the cache, without arithmetic. bytes is the length of each array, cut
 * down to whole cache lines. Every array starts on a cache line.
 */
struct rwk_probe {
	uint64_t bytes;
	uint32_t nread, nupdate, nwrite;
};
void rwk_probe(int isa, const struct rwk_probe *p, const uint64_t *arrays);

#endif
