/* Sums, updates and norms: whole groups by the instruction set (body.h), the rest by the scalar kernels. */
#include "ops.h"

/*
 * More sources than these are summed so many at a time, each time over a block of elements, whose sum waits in the first-level
 * cache. If read in turns of a group, more streams than that evict each other: with 16 sources in memory a pass takes 1.6 times as
 * long. Shorter blocks break the streams too often for the prefetchers.
 */
#define SOURCES 8
#define BLOCK 4096

/* Each row holds the arrays that a rule needs, and the form that it takes when its momentum is 0. */
#define ROW(name, step, w, states, plain) [RWK_##name] = {w, states, RWK_##plain},
static const struct {
	uint8_t w, states, plain;
} rules[RWK_RULES] = {RWK_EACH_RULE(ROW)};

/* A pass over the sources: an update by a rule, or only the sum if u is 0. */
struct pass {
	const struct rwk_update *u;
	int rule;
	struct rwk_outputs out;
};

static void run(const struct rwk_ops *ops, const struct pass *p, const struct rwk_sources *in, uint64_t from, uint64_t to)
{
	if (from == to)
		return; /* a row of a sparse tensor is short enough for the call to count */
	if (p->u)
		ops->update(p->rule, p->u, &p->out, in, from, to);
	else
		ops->sum(&p->out, in, from, to);
}

static void run_any(const struct rwk_ops *ops, const struct pass *p, const struct rwk_sources *in, uint64_t from, uint64_t to)
{
	uint64_t groups = from + rwk_whole(to - from, ops->group);

	run(ops, p, in, from, groups);
	run(&rwk_ops_scalar, p, in, groups, to);
}

/* Sums the first sources into part, over a block of elements, until no more than SOURCES are left. */
static void reduce(const struct rwk_ops *ops, struct rwk_sources *in, float part[BLOCK], uint64_t from, uint64_t to)
{
	uint64_t at = (uintptr_t)part - from * sizeof *part;
	struct pass sum = {.out = {.addr = &at, .count = 1, .type = RWK_F32}};

	while (in->count > SOURCES) {
		struct rwk_sources some = *in;

		some.count = SOURCES;
		run_any(ops, &sum, &some, from, to);
		in->addr += SOURCES;
		in->count -= SOURCES;
		in->first = at;
	}
}

/* Returns how many sources from the first one on have its codec. */
static uint32_t alike(const struct rwk_sources *in)
{
	uint32_t count = 1;

	while (count < in->count && (uint8_t)in->form[count] == (uint8_t)in->form[0])
		count++;
	return count;
}

/* Makes 0 of each -0, so that nothing changes where a payload has no value or 0. */
static void drop_signs(float *to, const float *x, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		to[i] = 0 + x[i];
}

/* Sums all sources into part, over a block of elements of n. */
static void reduce_coded(const struct rwk_ops *ops, struct rwk_sources in, float *part, uint64_t from, uint64_t to, uint64_t n)
{
	uint64_t at = (uintptr_t)part - from * sizeof *part;
	struct pass sum = {.out = {.addr = &at, .count = 1, .type = RWK_F32}};
	int signs = 1; /* the sum may hold -0 */

	while (in.count) {
		struct rwk_sources some = in;

		some.count = alike(&in);
		if (in.form[0] == 0) {
			some.count = some.count < SOURCES ? some.count : SOURCES;
			run_any(ops, &sum, &some, from, to);
		} else {
			if (in.first && signs)
				drop_signs(part, rwk_at(in.first, RWK_F32, from), to - from);
			signs = 0;
			rwk_fold(ops, &some, n, part, from, to, in.first != 0);
		}
		in.addr += some.count;
		in.form += some.count;
		in.count -= some.count;
		in.first = at;
	}
}

/* Reports whether a sum of payloads can gather in its destination: one of f32, in whole groups, where no source lies. */
static int is_plain(const struct pass *p, const struct rwk_sources *in, uint64_t n)
{
	return !p->u && p->out.count == 1 && p->out.type == RWK_F32 && !p->out.past_cache && n % RWK_CODED == 0 && in->form[0] &&
	       alike(in) == in->count;
}

/* Runs a pass if some sources are payloads. It sums a block at a time, which stays in the first-level cache. */
static void run_coded(const struct rwk_ops *ops, const struct pass *p, const struct rwk_sources *in, uint64_t n)
{
	_Alignas(RWK_LINE) float part[BLOCK];

	if (is_plain(p, in, n)) {
		reduce_coded(ops, *in, rwk_at(p->out.addr[0], RWK_F32, 0), 0, n, n);
		return;
	}
	for (uint64_t from = 0, to; from < n; from = to) {
		struct rwk_sources sum = {.type = RWK_F32, .first = (uintptr_t)part - from * sizeof *part};

		to = n - from < BLOCK ? n : from + BLOCK;
		reduce_coded(ops, *in, part, from, to, n);
		run_any(ops, p, &sum, from, to);
	}
	if (p->out.past_cache)
		ops->fence();
}

static int coded(const struct rwk_sources *in)
{
	for (uint32_t j = 0; in->form && j < in->count; j++)
		if (in->form[j])
			return 1;
	return 0;
}

static void run_all(const struct rwk_ops *ops, const struct pass *p, const struct rwk_sources *in, uint64_t n)
{
	if (coded(in)) {
		run_coded(ops, p, in, n);
		return;
	}
	_Alignas(RWK_LINE) float part[BLOCK];
	uint64_t block = in->count > SOURCES ? BLOCK : n;
	uint64_t from = p->out.past_cache ? rwk_before_line(p->out.addr[0], p->out.type, n) : 0;

	run(&rwk_ops_scalar, p, in, 0, from);
	for (uint64_t to; from < n; from = to) {
		struct rwk_sources rest = *in;

		to = n - from < block ? n : from + block;
		reduce(ops, &rest, part, from, to);
		run_any(ops, p, &rest, from, to);
	}
	if (p->out.past_cache)
		ops->fence();
}

void rwk_sum(int isa, const uint64_t *dst, uint32_t ndst, int dst_type, const uint64_t *src, const uint64_t *form, uint32_t nsrc,
	     int src_type, uint64_t n, int accumulate, int past_cache)
{
	struct pass p = {.out = {.addr = dst, .count = ndst, .type = dst_type, .past_cache = past_cache}};
	struct rwk_sources in = {.addr = src, .form = form, .count = nsrc, .type = src_type, .first = accumulate ? dst[0] : 0};

	run_all(rwk_ops_of(isa), &p, &in, n);
}

/* Returns the rule that runs for u. */
static int form_of(const struct rwk_update *u)
{
	return u->scalar[RWK_K_MOMENTUM] == 0 && u->rule < RWK_RULES ? rules[u->rule].plain : u->rule;
}

uint32_t rwk_states(const struct rwk_update *u)
{
	return u->rule < RWK_RULES ? rules[form_of(u)].states : 0;
}

int rwk_update(int isa, const struct rwk_update *u, const uint64_t *src, const uint64_t *form, uint32_t nsrc, const uint64_t *out,
	       uint32_t nout)
{
	struct pass p = {
		.u = u,
		.rule = form_of(u),
		.out = {out, nout, u->out_type, u->past_cache && nout},
	};
	struct rwk_sources in = {.addr = src, .form = form, .count = nsrc, .type = u->src_type};

	if (p.rule >= RWK_RULES)
		return -1;
	if (rules[p.rule].w && !u->w)
		return -1;
	for (int i = 0; i < rules[p.rule].states; i++)
		if (!u->state[i])
			return -1;
	run_all(rwk_ops_of(isa), &p, &in, u->n);
	return 0;
}

double rwk_sumsq(int isa, uint64_t addr, uint64_t n)
{
	const float *x = (const float *)(uintptr_t)addr;
	double part[16] = {0};
	uint64_t body = n - n % 16;

	rwk_ops_of(isa)->sumsq(part, x, body);
	for (uint64_t i = body; i < n; i++)
		part[i % 16] += (double)x[i] * x[i];
	for (int half = 8; half > 0; half /= 2)
		for (int j = 0; j < half; j++)
			part[j] += part[j + half];
	return part[0];
}

void rwk_probe(int isa, const struct rwk_probe *p, const uint64_t *arrays)
{
	rwk_ops_of(isa)->probe(p, arrays);
}
