/* Rows of sparse tensors: runs of rows that the same messages list are merged as short chunks. */
#include "ops.h"

#define BAD UINT32_MAX /* the next row of a source that lists what it may not */

#define ZEROS 4096
static const float zeros[ZEROS];

/* Returns the id or the word of a bitmap, which others may write. */
static uint32_t load_id(uint64_t at, uint32_t i)
{
	return __atomic_load_n((const uint32_t *)(uintptr_t)at + i, __ATOMIC_RELAXED);
}

/* Returns the first bit of n from bit i on; n if no bit follows, or n + 1 if the last word has bits behind them. */
static uint64_t next_bit(uint64_t bitmap, uint64_t i, uint64_t n)
{
	uint64_t word = i / 32, words = (n + 31) / 32;
	uint32_t mask = ~0u << i % 32;

	for (; word < words; word++, mask = ~0u) {
		uint32_t bits = load_id(bitmap, word) & mask;

		if (bits) {
			i = word * 32 + __builtin_ctz(bits);
			return i < n ? i : n + 1;
		}
	}
	return n;
}

/* Sets the next row of a source, which must be at least least. */
static void seek(struct rwk_row_source *s, uint32_t least)
{
	uint64_t row = s->to;

	if (s->form == 0) {
		if (s->at < s->count)
			row = load_id(s->ids, s->at);
		if (row < least || (row >= s->to && s->at < s->count))
			row = BAD;
	} else {
		row = s->from + next_bit(s->ids, least - s->from, s->to - s->from);
		if (row > s->to || (row < s->to) != (s->at < s->count))
			row = BAD;
	}
	s->next = row;
}

void rwk_begin_rows(struct rwk_row_source *s)
{
	seek(s, s->from);
}

/* Where a row lies, in the first array of its chunk. */
struct place {
	uint64_t at, stride;
	uint32_t chunk, left; /* rows of the chunk from this one on */
};

static struct place place_of(const struct rwk_rows *r, uint32_t row)
{
	const uint64_t bytes = (uint64_t)r->width * sizeof(float);
	uint32_t chunk = row / r->per_chunk, first = chunk * r->per_chunk;
	uint32_t rows = r->rows - first < r->per_chunk ? r->rows - first : r->per_chunk;

	return (struct place){
		.at = r->base + chunk * r->pitch + (row - first) * bytes,
		.stride = (rows * bytes + RWK_LINE - 1) & ~(uint64_t)(RWK_LINE - 1),
		.chunk = chunk,
		.left = rows - (row - first),
	};
}

/* Prefetches rows, to be written if write is 1. The hardware prefetches the rest of many. */
static inline __attribute__((always_inline)) void prefetch(uint64_t at, uint64_t bytes, const int write)
{
	bytes = bytes < 2048 ? bytes : 2048;
	for (uint64_t i = at & ~(uint64_t)(RWK_LINE - 1); i < at + bytes; i += RWK_LINE)
		__builtin_prefetch((const void *)(uintptr_t)i, write);
}

static int is_touched(const struct rwk_rows *r, uint32_t row)
{
	return ((const uint64_t *)(uintptr_t)r->touched)[row / 64] >> row % 64 & 1;
}

/* The merging or applying of rows under way. u has all but the arrays and their length. */
struct pass {
	int isa, wrong;
	uint32_t states;
	struct rwk_rows *r;
	struct rwk_update u;
	uint64_t out[RWK_ROW_SOURCES]; /* addresses of a run's results */
};

static void begin_pass(struct pass *p, int isa, struct rwk_rows *r)
{
	p->isa = isa;
	p->wrong = 0;
	p->r = r;
	p->u = (struct rwk_update){.out_type = r->out_type};
	p->u.rule = r->what == RWK_ROWS_SUM ? RWK_SUM : r->rule;
	p->u.src_type = r->what == RWK_ROWS_APPLY ? RWK_F32 : r->src_type;
	memcpy(p->u.scalar, r->scalar, sizeof p->u.scalar);
	p->states = r->what == RWK_ROWS_UPDATE || r->what == RWK_ROWS_APPLY ? rwk_states(&p->u) : 0;
}

/* Runs the rule over n elements from a place on. The first nout addresses of the pass get the results. */
static void update(struct pass *p, const struct place *at, uint64_t n, const uint64_t *src, uint32_t nsrc, uint32_t nout)
{
	p->u.w = at->at;
	for (uint32_t i = 0; i < p->states; i++)
		p->u.state[i] = at->at + (i + 1) * at->stride;
	p->u.n = n;
	if (rwk_update(p->isa, &p->u, src, NULL, nsrc, p->out, nout) != 0)
		p->wrong = -1;
}

/* Runs the rule with gradients of 0 over the rows [from, to), which nobody touched. */
static void update_untouched(struct pass *p, uint32_t from, uint32_t to)
{
	const uint64_t src = (uintptr_t)zeros;

	while (from < to) {
		struct place at = place_of(p->r, from);
		uint32_t rows = to - from < at.left ? to - from : at.left;
		uint64_t n = (uint64_t)rows * p->r->width;

		for (uint64_t i = 0; i < n; i += ZEROS) {
			update(p, &at, n - i < ZEROS ? n - i : ZEROS, &src, 1, 0);
			at.at += ZEROS * sizeof(float);
		}
		from += rows;
	}
}

/* Rows of a chunk that follow each other, which the same sources list. */
struct run {
	struct place place;
	uint32_t rows;
	uint32_t result;      /* place of the first row in the block */
	uint32_t first, nsrc; /* the sources' addresses, in the batch */
	int more;             /* the accumulator has sums of these rows */
};

/* The runs of a batch are prefetched while those of the batch before are merged. */
#define RUNS 16

struct batch {
	uint32_t runs, addresses;
	struct run run[RUNS];
	uint64_t addr[RWK_ROW_SOURCES];
};

struct merge {
	struct pass pass;
	struct rwk_row_source *src;
	const uint64_t *outs;
	uint32_t nsrc, nouts, at, to; /* at: end of what was planned */
};

/* Returns the first row, before to, that a source lists next, or to. */
static uint32_t next_row(const struct merge *m)
{
	uint32_t row = m->to;

	for (uint32_t j = 0; j < m->nsrc; j++)
		if (m->src[j].next < row)
			row = m->src[j].next;
	return row;
}

/* Returns how many of n ids follow each other, from the first on. Its value was read already. */
static uint32_t consecutive(uint64_t ids, uint32_t n, uint32_t first)
{
	uint32_t i = 1;

	while (i < n && load_id(ids, i) == first + i)
		i++;
	return i;
}

/* Returns how many rows from one on, which it lists next, a source lists without a gap, up to most. */
static uint32_t streak(const struct rwk_row_source *s, uint32_t row, uint32_t most)
{
	uint32_t n = 0, gap = 0;

	if (most > s->count - s->at)
		most = s->count - s->at;
	if (s->form == 0)
		return consecutive(s->ids + 4 * (uint64_t)s->at, most, row);
	while (n < most && !gap) {
		uint32_t bit = row - s->from + n;

		gap = ~load_id(s->ids, bit / 32) >> bit % 32;
		n += gap ? (uint32_t)__builtin_ctz(gap) : 32 - bit % 32;
	}
	return n < most ? n : most;
}

/* Returns how many rows from one on, up to most, the same sources list. */
static uint32_t streak_of_all(const struct merge *m, uint32_t row, uint32_t most)
{
	for (uint32_t j = 0; j < m->nsrc; j++) {
		const struct rwk_row_source *s = &m->src[j];

		if (s->next == row)
			most = streak(s, row, most);
		else if (s->next - row < most)
			most = s->next - row;
	}
	return most;
}

/* Takes the rows of a run, from one on, of all sources that list them, and adds the addresses to the batch. */
static void take(struct merge *m, struct batch *b, struct run *run, uint32_t row)
{
	const uint64_t bytes = (uint64_t)m->pass.r->width * rwk_size(m->pass.r->src_type);

	run->first = b->addresses;
	for (uint32_t j = 0; j < m->nsrc; j++) {
		struct rwk_row_source *s = &m->src[j];

		if (s->next != row)
			continue;
		b->addr[b->addresses++] = s->rows + s->at * bytes;
		prefetch(s->rows + s->at * bytes, run->rows * bytes, 0);
		s->at += run->rows;
		seek(s, row + run->rows);
		if (s->next == BAD && !m->pass.wrong)
			m->pass.wrong = 1 + (int)j;
	}
	run->nsrc = b->addresses - run->first;
}

/* Prefetches the arrays that will change of some rows from a place on. */
static void prefetch_rows(const struct pass *p, const struct place *at, uint32_t rows)
{
	const struct rwk_rows *r = p->r;
	const uint64_t bytes = (uint64_t)rows * r->width * sizeof(float);

	if (r->what == RWK_ROWS_UPDATE || r->what == RWK_ROWS_APPLY)
		for (uint32_t j = 0; j <= p->states; j++)
			prefetch(at->at + j * at->stride, bytes, 1);
	if (r->what >= RWK_ROWS_ACCUMULATE)
		prefetch(at->at + r->accumulator * at->stride, bytes, 1);
}

/* Marks rows from one on as accumulated, up to one that differs from the first in whether it was. Returns how many. */
static uint32_t touch(const struct rwk_rows *r, uint32_t row, uint32_t most, int *more)
{
	uint32_t n = 0;

	for (*more = is_touched(r, row); n < most && is_touched(r, row + n) == *more; n++)
		((uint64_t *)(uintptr_t)r->touched)[(row + n) / 64] |= (uint64_t)1 << (row + n) % 64;
	return n;
}

/* Plans the rows of a batch that follow a row, up to most, with the same sources. Returns how many. */
static uint32_t add_run(struct merge *m, struct batch *b, uint32_t row, uint32_t most)
{
	struct rwk_rows *r = m->pass.r;
	struct run *run = &b->run[b->runs++];

	run->place = place_of(r, row);
	run->rows = streak_of_all(m, row, most < run->place.left ? most : run->place.left);
	if (r->what == RWK_ROWS_ACCUMULATE)
		run->rows = touch(r, row, run->rows, &run->more);
	((uint64_t *)(uintptr_t)r->heat)[run->place.chunk] += run->rows;
	take(m, b, run, row);
	prefetch_rows(&m->pass, &run->place, run->rows);
	run->result = r->count;
	for (uint32_t i = 0; r->block && i < run->rows; i++)
		((uint32_t *)(uintptr_t)r->block)[r->count++] = row + i;
	return run->rows;
}

/* Plans the next runs, until the batch or the block is full. */
static void plan(struct merge *m, struct batch *b)
{
	struct rwk_rows *r = m->pass.r;

	b->runs = b->addresses = 0;
	while (m->at < m->to && !m->pass.wrong && b->runs < RUNS && b->addresses + m->nsrc <= RWK_ROW_SOURCES) {
		uint32_t row = next_row(m);

		if (row < m->to && r->block && r->count == r->cap)
			return;
		if (r->standard && r->what == RWK_ROWS_UPDATE)
			update_untouched(&m->pass, m->at, row);
		m->at = row;
		if (row < m->to)
			m->at += add_run(m, b, row, r->block && r->cap - r->count < m->to - row ? r->cap - r->count : m->to - row);
	}
}

static void merge_run(struct merge *m, const struct run *run, const uint64_t *src)
{
	struct pass *p = &m->pass;
	const struct rwk_rows *r = p->r;
	const uint64_t at = 4 * (uint64_t)r->cap + (uint64_t)run->result * r->width * rwk_size(r->out_type);
	uint64_t n = (uint64_t)run->rows * r->width;

	if (r->what == RWK_ROWS_ACCUMULATE) {
		uint64_t sum = run->place.at + r->accumulator * run->place.stride;

		rwk_sum(p->isa, &sum, 1, RWK_F32, src, NULL, run->nsrc, r->src_type, n, run->more, 0);
		return;
	}
	for (uint32_t i = 0; i < m->nouts; i++)
		p->out[i] = m->outs[i] + at;
	if (r->what == RWK_ROWS_UPDATE || m->nouts)
		update(p, &run->place, n, src, run->nsrc, m->nouts);
}

int rwk_merge_rows(int isa, struct rwk_rows *r, struct rwk_row_source *src, uint32_t nsrc, const uint64_t *outs, uint32_t nouts,
		   uint32_t from, uint32_t to, uint32_t *reached)
{
	struct merge m;
	struct batch batches[2], *now = &batches[0], *next = &batches[1];

	begin_pass(&m.pass, isa, r);
	m.src = src, m.nsrc = nsrc;
	m.outs = outs, m.nouts = nouts;
	m.at = from, m.to = to;
	if (r->block && nouts == 0)
		m.outs = &r->block, m.nouts = 1;
	for (uint32_t j = nsrc; j-- > 0;)
		if (src[j].next == BAD)
			m.pass.wrong = 1 + (int)j;
	plan(&m, now);
	while (now->runs) {
		struct batch *done = now;

		plan(&m, next);
		for (uint32_t i = 0; i < done->runs; i++)
			merge_run(&m, &done->run[i], done->addr + done->run[i].first);
		now = next;
		next = done;
	}
	*reached = m.at;
	return m.pass.wrong;
}

/* Returns the first row from row on, before to, that was accumulated, or to. */
static uint32_t next_touched(const struct rwk_rows *r, uint32_t row, uint32_t to)
{
	const uint64_t *words = (const uint64_t *)(uintptr_t)r->touched;
	uint64_t bits;

	if (row >= to)
		return to;
	bits = words[row / 64] & ~(uint64_t)0 << row % 64;
	for (; !bits; bits = words[row / 64]) {
		row = row / 64 * 64 + 64;
		if (row >= to)
			return to;
	}
	row = row / 64 * 64 + (uint32_t)__builtin_ctzll(bits);
	return row < to ? row : to;
}

/* How many rows ahead a row to apply is prefetched. */
#define AHEAD 16

/* Returns the next accumulated row from row on, and prefetches it. */
static uint32_t prefetch_touched(const struct pass *p, uint32_t row, uint32_t to)
{
	row = next_touched(p->r, row, to);
	if (row < to) {
		struct place at = place_of(p->r, row);

		prefetch_rows(p, &at, 1);
	}
	return row;
}

/* Applies accumulated rows that follow each other in a chunk, from one on, and returns how many. */
static uint32_t apply_run(struct pass *p, uint32_t row, uint32_t to)
{
	struct place at = place_of(p->r, row);
	uint64_t sum = at.at + p->r->accumulator * at.stride;
	uint32_t rows = 1;

	if (p->r->what == RWK_ROWS_MEASURE) {
		p->r->sumsq += rwk_sumsq(p->isa, sum, p->r->width);
		return rows;
	}
	while (rows < at.left && row + rows < to && is_touched(p->r, row + rows))
		rows++;
	update(p, &at, (uint64_t)rows * p->r->width, &sum, 1, 0);
	return rows;
}

static void clear_touched(struct rwk_rows *r, uint32_t from, uint32_t to)
{
	uint64_t *words = (uint64_t *)(uintptr_t)r->touched;

	for (uint32_t row = from, end; row < to; row = end) {
		end = to - row / 64 * 64 < 64 ? to : row / 64 * 64 + 64;
		words[row / 64] &= ~(~(uint64_t)0 >> (64 - (end - row)) << row % 64);
	}
}

int rwk_apply_rows(int isa, struct rwk_rows *r, uint32_t from, uint32_t to)
{
	struct pass p;
	uint32_t ahead, rows = AHEAD;

	begin_pass(&p, isa, r);
	ahead = prefetch_touched(&p, from, to);
	for (uint32_t row, done = from; done < to && r->what != RWK_ROWS_DROP; done = row + rows) {
		while (rows--)
			ahead = prefetch_touched(&p, ahead + 1, to);
		row = next_touched(r, done, to);
		if (r->standard && r->what == RWK_ROWS_APPLY)
			update_untouched(&p, done, row);
		rows = row < to ? apply_run(&p, row, to) : 0;
	}
	if (r->what != RWK_ROWS_MEASURE)
		clear_touched(r, from, to);
	return p.wrong;
}

uint32_t rwk_gather_rows(int isa, const struct rwk_rows *r, uint64_t ids, uint32_t count, uint64_t dst, int dst_type)
{
	struct {
		uint64_t at;
		uint32_t rows;
	} runs[AHEAD] = {0};
	uint32_t planned = 0, i = 0;

	for (uint32_t done = 0; i < count || done < planned;) {
		if (planned - done == AHEAD || i == count) {
			const uint64_t n = (uint64_t)runs[done % AHEAD].rows * r->width;

			rwk_convert(isa, dst, dst_type, runs[done++ % AHEAD].at, RWK_F32, n, 0);
			dst += n * rwk_size(dst_type);
		}
		if (i < count) {
			const uint32_t row = load_id(ids, i);
			struct place at;

			if (row >= r->rows)
				return 1 + i;
			at = place_of(r, row);
			at.left = consecutive(ids + 4 * (uint64_t)i, count - i < at.left ? count - i : at.left, row);
			runs[planned % AHEAD].at = at.at;
			runs[planned++ % AHEAD].rows = at.left;
			prefetch(at.at, (uint64_t)at.left * r->width * sizeof(float), 0);
			i += at.left;
		}
	}
	return 0;
}
