/*
 * These are the kernels over a vector of any width. An instruction set includes its vec_*.h, then this file, then names its table.
 */

/*
 * The elements summed at once are four cache lines of f32. Their sums stay in registers until the update has used them. The scalar
 * kernels' group is one element, because they take the rest of a range.
 */
#define GROUP (WIDTH == 1 ? 1 : 64) /* measured with data in memory: 64 beats 16, 32 and 128 */
#define VECTORS (GROUP / WIDTH)

typedef vf vf_anywhere __attribute__((aligned(1), may_alias)); /* copies of 16-bit types come as f32 words at odd addresses */

FN vf vf_load(const void *p)
{
	return *(const vf_anywhere *)p;
}

FN void vf_store(void *p, vf x)
{
	*(vf_anywhere *)p = x;
}

FN vf vf_all(float x)
{
	return x - (vf){0}; /* which, unlike a sum, keeps -0 */
}

/* Keeps the load of x, and hides from the compiler that x is unchanged. */
FN vf vf_touch(vf x)
{
	__asm__ volatile("" : REGISTER(x));
	return x;
}

#ifndef STREAMS /* nothing stores past the cache */
#define vf_stream vf_store
#define vf_stream_bf16 vf_store_bf16
#define vf_stream_f16 vf_store_f16
#define vf_fence()
#endif

FN vf load(const void *p, int type)
{
	return type == RWK_F32 ? vf_load(p) : type == RWK_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
}

/* Stores x, past the cache if past is 1. */
FN void store(void *p, int type, vf x, int past)
{
	if (type == RWK_F32)
		past ? vf_stream(p, x) : vf_store(p, x);
	else if (type == RWK_BF16)
		past ? vf_stream_bf16(p, x) : vf_store_bf16(p, x);
	else
		past ? vf_stream_f16(p, x) : vf_store_f16(p, x);
}

/* Returns (more ? x : nothing) + k sources, for the vector at element i. */
FN vf add(vf x, int more, const uint64_t *src, int k, int type, uint64_t i)
{
	for (int j = 0; j < k; j++) {
		vf s = load(rwk_at(src[j], type, i), type);

		if (more || j)
			s = x + s;
		x = s;
	}
	return x;
}

/*
 * Sums the sources, for the group at element i. It takes four sources at a time, because chunks lie at equal offsets in their
 * pages, and more streams at once than the cache has ways would evict each other.
 */
FN void gather(vf x[VECTORS], const struct rwk_sources *in, int type, uint64_t i)
{
	const uint64_t *src = in->addr;
	uint32_t nsrc = in->count, j = in->first ? 0 : nsrc < 4 ? 1 : 4;

	if (j == 0)
		for (int v = 0; v < VECTORS; v++)
			x[v] = vf_load(rwk_at(in->first, RWK_F32, i + v * WIDTH));
	if (j == 1)
		for (int v = 0; v < VECTORS; v++)
			x[v] = add(x[v], 0, src, 1, type, i + v * WIDTH);
	if (j == 4)
		for (int v = 0; v < VECTORS; v++)
			x[v] = add(x[v], 0, src, 4, type, i + v * WIDTH);
	for (; j + 4 <= nsrc; j += 4)
		for (int v = 0; v < VECTORS; v++)
			x[v] = add(x[v], 1, src + j, 4, type, i + v * WIDTH);
	for (; j < nsrc; j++)
		for (int v = 0; v < VECTORS; v++)
			x[v] = add(x[v], 1, src + j, 1, type, i + v * WIDTH);
}

FN void cast(char *dst, int dst_type, const char *src, int src_type, uint64_t n, int past_cache)
{
	for (uint64_t i = 0; i < n; i += WIDTH)
		store(dst + i * rwk_size(dst_type), dst_type, load(src + i * rwk_size(src_type), src_type), past_cache);
}

FN void cast_from(void *dst, int dst_type, const void *src, int src_type, uint64_t n, int past_cache)
{
	if (src_type == RWK_F32)
		cast(dst, dst_type, src, RWK_F32, n, past_cache);
	else if (src_type == RWK_BF16)
		cast(dst, dst_type, src, RWK_BF16, n, past_cache);
	else
		cast(dst, dst_type, src, RWK_F16, n, past_cache);
}

FN void cast_any(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to, int past_cache)
{
	void *d = rwk_at(dst, dst_type, from), *s = rwk_at(src, src_type, from);

	if (dst_type == RWK_F32)
		cast_from(d, RWK_F32, s, src_type, to - from, past_cache);
	else if (dst_type == RWK_BF16)
		cast_from(d, RWK_BF16, s, src_type, to - from, past_cache);
	else
		cast_from(d, RWK_F16, s, src_type, to - from, past_cache);
}

LOOP void convert(uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t from, uint64_t to, int past_cache)
{
	if (past_cache)
		cast_any(dst, dst_type, src, src_type, from, to, 1);
	else
		cast_any(dst, dst_type, src, src_type, from, to, 0);
}

LOOP void fence(void)
{
	vf_fence();
}

/*
 * Writes the group at element i to every output, all its lines to one before the next, because a line that is written in parts,
 * with other lines between, leaves the write buffers in parts. An output that does not begin a line here is written through the
 * cache.
 */
FN void emit_as(const struct rwk_outputs *out, int type, const vf x[VECTORS], uint64_t i)
{
	for (uint32_t d = 0; d < out->count; d++) {
		char *p = rwk_at(out->addr[d], type, i);

		if (out->past_cache && !((uintptr_t)p & (RWK_LINE - 1)))
			for (int v = 0; v < VECTORS; v++)
				store(p + v * WIDTH * rwk_size(type), type, x[v], 1);
		else
			for (int v = 0; v < VECTORS; v++)
				store(p + v * WIDTH * rwk_size(type), type, x[v], 0);
	}
}

NOINLINE void emit_halves(const struct rwk_outputs *out, const vf x[VECTORS], uint64_t i)
{
	if (out->type == RWK_BF16)
		emit_as(out, RWK_BF16, x, i);
	else
		emit_as(out, RWK_F16, x, i);
}

/* The functions that are not inline keep x in memory. It goes to memory for them only. */
FN void emit(const struct rwk_outputs *out, const vf x[VECTORS], uint64_t i)
{
	vf memory[VECTORS];

	if (out->type == RWK_F32) {
		emit_as(out, RWK_F32, x, i);
	} else {
		for (int v = 0; v < VECTORS; v++)
			memory[v] = x[v];
		emit_halves(out, memory, i);
	}
}

/* The structures that loops read for every group are copied, because no store can change a copy. */
FN void sum_groups(const struct rwk_outputs *out, const struct rwk_sources *in, int type, uint64_t from, uint64_t to)
{
	const struct rwk_sources sources = *in;

	for (uint64_t i = from; i < to; i += GROUP) {
		vf x[VECTORS];

		gather(x, &sources, type, i);
		emit(out, x, i);
	}
}

LOOP void sum_any(const struct rwk_outputs *out, const struct rwk_sources *in, uint64_t from, uint64_t to)
{
	switch (in->type) {
	case RWK_F32:
		sum_groups(out, in, RWK_F32, from, to);
		break;
	case RWK_BF16:
		sum_groups(out, in, RWK_BF16, from, to);
		break;
	case RWK_F16:
		sum_groups(out, in, RWK_F16, from, to);
		break;
	}
}

/* Sums the group at element i of 16-bit sources. It is a separate function so that the rules do not each contain it. */
NOINLINE void gather_halves(vf x[VECTORS], const struct rwk_sources *in, uint64_t i)
{
	if (in->type == RWK_BF16)
		gather(x, in, RWK_BF16, i);
	else
		gather(x, in, RWK_F16, i);
}

#include "rules.h"

/* Updates the elements [from, to) by a rule. LAMB's second pass does not change the states. */
#define UPDATE(number, name, needs_w, states, ...)                                                                                 \
	FN vf step_##name(const struct operands o, uint64_t i, vf g)                                                               \
	{                                                                                                                          \
		struct element e = load_element(o, i, needs_w, states);                                                            \
                                                                                                                                   \
		name(o, &e, g);                                                                                                    \
		store_element(o, i, &e, RWK_##number != RWK_SUM && RWK_##number != RWK_LAMB,                                       \
			      RWK_##number == RWK_LAMB_APPLY ? 0 : states);                                                        \
		return e.w;                                                                                                        \
	}                                                                                                                          \
	LOOP void update_##name(const struct rwk_update *u, const struct rwk_outputs *out, const struct rwk_sources *in,           \
				uint64_t from, uint64_t to)                                                                        \
	{                                                                                                                          \
		const struct operands o = operands_of(u);                                                                          \
		const struct rwk_sources sources = *in;                                                                            \
		const int outputs = out->count != 0;                                                                               \
                                                                                                                                   \
		for (uint64_t i = from; i < to; i += GROUP) {                                                                      \
			vf x[VECTORS], memory[VECTORS];                                                                            \
                                                                                                                                   \
			if (sources.type == RWK_F32) {                                                                             \
				gather(x, &sources, RWK_F32, i);                                                                   \
			} else {                                                                                                   \
				gather_halves(memory, in, i);                                                                      \
				for (int v = 0; v < VECTORS; v++)                                                                  \
					x[v] = memory[v];                                                                          \
			}                                                                                                          \
			for (int v = 0; v < VECTORS; v++)                                                                          \
				x[v] = step_##name(o, i + v * WIDTH, o.scale * x[v]);                                              \
			if (outputs)                                                                                               \
				emit(out, x, i);                                                                                   \
		}                                                                                                                  \
	}
RWK_EACH_RULE(UPDATE)

typedef void (*update_fn)(const struct rwk_update *u, const struct rwk_outputs *out, const struct rwk_sources *in, uint64_t from,
			  uint64_t to);

#define UPDATE_OF(number, name, ...) [RWK_##number] = update_##name,
static const update_fn updates[RWK_RULES] = {RWK_EACH_RULE(UPDATE_OF)};

LOOP void update(int rule, const struct rwk_update *u, const struct rwk_outputs *out, const struct rwk_sources *in, uint64_t from,
		 uint64_t to)
{
	updates[rule](u, out, in, from, to);
}

typedef vsq vsq_anywhere __attribute__((aligned(8), may_alias));

LOOP void sumsq(double part[16], const float *x, uint64_t n)
{
	vsq acc[SQ_VECTORS];

	for (int j = 0; j < SQ_VECTORS; j++)
		acc[j] = *(const vsq_anywhere *)(part + j * (16 / SQ_VECTORS));
	for (uint64_t i = 0; i < n; i += 16) {
		for (int j = 0; j < SQ_VECTORS; j++) {
			vsq v = vsq_widen(x + i + j * (16 / SQ_VECTORS));

			acc[j] = acc[j] + v * v;
		}
	}
	for (int j = 0; j < SQ_VECTORS; j++)
		*(vsq_anywhere *)(part + j * (16 / SQ_VECTORS)) = acc[j];
}

/* Walks memory in the order of update. */
LOOP void probe(const struct rwk_probe *p, const uint64_t *read)
{
	const uint64_t *update = read + p->nread, *write = update + p->nupdate;
	uint64_t lines = p->bytes / RWK_LINE * (RWK_LINE / sizeof(float));

	for (uint64_t from = 0, to; from < lines; from = to) {
		to = lines - from < 64 ? lines : from + 64;
		for (uint32_t j = 0; j < p->nread; j++)
			for (uint64_t i = from; i < to; i += WIDTH)
				vf_touch(vf_load(rwk_at(read[j], RWK_F32, i)));
		for (uint64_t i = from; i < to; i += WIDTH) {
			for (uint32_t j = 0; j < p->nupdate; j++) {
				float *x = rwk_at(update[j], RWK_F32, i);

				vf_store(x, vf_touch(vf_load(x)));
			}
		}
		for (uint32_t j = 0; j < p->nwrite; j++)
			for (uint64_t i = from; i < to; i += WIDTH)
				vf_stream(rwk_at(write[j], RWK_F32, i), vf_all(0));
	}
	vf_fence();
}

#define RWK_TABLE                                                                                                                  \
	{                                                                                                                          \
		.group = GROUP, .width = WIDTH, .sum = sum_any, .update = update, .convert = convert, .fence = fence,              \
		.sumsq = sumsq, .coded = RWK_CODERS, .probe = probe                                                                \
	}
