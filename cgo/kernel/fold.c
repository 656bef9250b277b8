/*
 * Sums and updates, block by block. A block's result is made once, in the first-level cache, and copied from there to every
 * destination: one pass over the sources, whole lines to each destination, and one fence at the end.
 */
#include "ops.h"

/*
 * Elements of a block. Its sum and its result stay in the first-level cache together with what streams past them; smaller
 * blocks break the streams too often for the prefetchers.
 */
#define BLOCK 1024

/* Prefetchers follow about 16 streams: more sources than that are summed so many at a time, over a block. */
#define SOURCES 16

/* The address whose element from is at p. */
static uint64_t based(const void *p, int dtype, uint64_t from)
{
	return (uintptr_t)p - from * rwk_size(dtype);
}

/* The end of the block at from: whole blocks after the first, which ends where a cache line of dst does. */
static uint64_t block_end(uint64_t from, uint64_t n, uint64_t dst, int dst_type)
{
	uint64_t past_line = ((dst + from * rwk_size(dst_type)) & (RWK_LINE - 1)) / rwk_size(dst_type);
	uint64_t to = from + BLOCK - past_line;

	return to < n ? to : n;
}

static void sum_some(const struct rwk_ops *ops, const struct rwk_sum_step *s, uint64_t from, uint64_t to)
{
	uint64_t groups = from + rwk_whole(to - from, ops->group);

	ops->sum(s, from, groups);
	rwk_ops_scalar.sum(s, groups, to);
}

/* Sums a block, or anything if there are at most SOURCES. */
static void sum_block(const struct rwk_ops *ops, struct rwk_sum_step s, uint64_t from, uint64_t to)
{
	_Alignas(RWK_LINE) float part[BLOCK];
	struct rwk_sum_step p = s;

	for (; s.nsrc > SOURCES; s.src += SOURCES, s.nsrc -= SOURCES) {
		p.dst = based(part, RWK_F32, from);
		p.dst_type = RWK_F32;
		p.first = s.first;
		p.src = s.src;
		p.nsrc = SOURCES;
		sum_some(ops, &p, from, to);
		s.first = p.dst;
	}
	sum_some(ops, &s, from, to);
}

/* Copies the block that lies in result to every destination. */
static void spread(const struct rwk_ops *ops, const uint64_t *dst, uint32_t ndst, int dst_type, const void *result, uint64_t from,
		   uint64_t to, int stream)
{
	uint64_t bytes = (to - from) * rwk_size(dst_type);

	for (uint32_t i = 0; i < ndst; i++) {
		void *at = rwk_at(dst[i], dst_type, from);

		if (stream)
			rwk_stream_copy(ops, (uintptr_t)at, (uintptr_t)result, bytes);
		else
			memcpy(at, result, bytes);
	}
}

void rwk_sum(int isa, const uint64_t *dst, uint32_t ndst, int dst_type, const uint64_t *src, uint32_t nsrc, int src_type,
	     uint64_t n, int accumulate, int stream)
{
	const struct rwk_ops *ops = rwk_ops_of(isa);
	_Alignas(RWK_LINE) float result[BLOCK];
	int direct = ndst == 1 && !stream;
	struct rwk_sum_step s = {
		.dst = dst[0], .first = accumulate ? dst[0] : 0, .src = src, .nsrc = nsrc, .dst_type = dst_type, .src_type = src_type,
	};

	if (direct && nsrc <= SOURCES) {
		sum_some(ops, &s, 0, n);
		return;
	}
	for (uint64_t from = 0, to; from < n; from = to) {
		to = block_end(from, n, dst[0], dst_type);
		if (!direct)
			s.dst = based(result, dst_type, from);
		sum_block(ops, s, from, to);
		if (!direct)
			spread(ops, dst, ndst, dst_type, result, from, to, stream);
	}
	if (stream)
		ops->fence();
}

/* Which arrays a rule needs, and the form it takes when its momentum is 0 (0: it needs one always, or has none). */
static const struct rule {
	uint8_t w, states, plain;
} rules[RWK_STEPS] = {
	[RWK_SUM] = {0, 0, 0},
	[RWK_SGD_MXNET] = {1, 1, RWK_SGD_MXNET_PLAIN},
	[RWK_SGD_TORCH] = {1, 1, RWK_SGD_TORCH_PLAIN},
	[RWK_NAG_MXNET] = {1, 1, RWK_SGD_MXNET_PLAIN},
	[RWK_NESTEROV_TORCH] = {1, 1, RWK_SGD_TORCH_PLAIN},
	[RWK_ADAM_MXNET] = {1, 2, 0},
	[RWK_ADAM_TORCH] = {1, 2, 0},
	[RWK_ADAMW_MXNET] = {1, 2, 0},
	[RWK_ADAMW_TORCH] = {1, 2, 0},
	[RWK_ADAGRAD_MXNET] = {1, 1, 0},
	[RWK_ADAGRAD_TORCH] = {1, 1, 0},
	[RWK_RMSPROP_MXNET] = {1, 1, 0},
	[RWK_RMSPROP_TORCH] = {1, 2, RWK_RMSPROP_TORCH_PLAIN},
	[RWK_LAMB] = {1, 2, 0},
	[RWK_LAMB_APPLY] = {1, 2, 0},
	[RWK_SGD_MXNET_PLAIN] = {1, 0, 0},
	[RWK_SGD_TORCH_PLAIN] = {1, 0, 0},
	[RWK_RMSPROP_TORCH_PLAIN] = {1, 1, 0},
};

static void update_some(const struct rwk_ops *ops, const struct rwk_update_step *s, uint64_t from, uint64_t to)
{
	uint64_t groups = from + rwk_whole(to - from, ops->group);

	ops->update(s, from, groups);
	rwk_ops_scalar.update(s, groups, to);
}

/* Runs a step whose sources are few and whose output is one, or none. */
static void update_block(const struct rwk_ops *ops, struct rwk_update_step s, uint64_t from, uint64_t to)
{
	_Alignas(RWK_LINE) float sum[BLOCK];
	uint64_t at = based(sum, RWK_F32, from);

	if (s.nsrc > SOURCES) {
		sum_block(ops, (struct rwk_sum_step){at, 0, s.src, s.nsrc, RWK_F32, s.src_type}, from, to);
		s.src = &at;
		s.nsrc = 1;
		s.src_type = RWK_F32;
	}
	update_some(ops, &s, from, to);
}

int rwk_update(int isa, const struct rwk_update *u)
{
	const struct rwk_ops *ops = rwk_ops_of(isa);
	const uint64_t *out = (const uint64_t *)(uintptr_t)u->out;
	_Alignas(RWK_LINE) float result[BLOCK];
	int direct = u->nout == 0 || (u->nout == 1 && !u->stream), rule = u->rule;

	if (rule >= RWK_RULES)
		return -1;
	if (rules[rule].plain && u->scalar[RWK_K_MOMENTUM] == 0)
		rule = rules[rule].plain;
	if (rules[rule].w && !u->w)
		return -2;
	for (int i = 0; i < rules[rule].states; i++)
		if (!u->state[i])
			return -2;

	struct rwk_update_step s = {
		.u = u, .out = u->nout ? out[0] : 0, .src = (const uint64_t *)(uintptr_t)u->src, .nsrc = u->nsrc, .rule = rule,
		.src_type = u->src_type,
	};

	if (direct && u->nsrc <= SOURCES) {
		update_some(ops, &s, 0, u->n);
		return 0;
	}
	for (uint64_t from = 0, to; from < u->n; from = to) {
		to = block_end(from, u->n, u->nout ? out[0] : 0, u->out_type);
		if (!direct)
			s.out = based(result, u->out_type, from);
		update_block(ops, s, from, to);
		if (!direct)
			spread(ops, out, u->nout, u->out_type, result, from, to, u->stream);
	}
	if (u->stream)
		ops->fence();
	return 0;
}
