/*
 * Streams of rows. An operation on rows of a sparse tensor travels in each lane as a stream of full messages. Their numbers of rows
 * are places among the tensor's rows in that lane ("lane rows"). Messages with rows are answered in their order, and so are fetches
 * of results, so that a message needs no number.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The kinds of messages, and how a message lists its rows. codec/rows.go has the same numbers. */
enum { GRADIENT, GRADIENT_WANTS, FETCH, PULL, BLOCK };
enum { FORM_IDS, FORM_BITMAP };

/* The first bytes of every message, and of a block of results. */
struct header {
	uint32_t from, to, count;
	uint8_t kind, form;
	uint16_t reserved;
};
_Static_assert(sizeof(struct header) + sizeof(uint32_t) == RW_ROW_BYTES, "a message of one row");

/* Shorter runs of results are not worth a fence, and go through the cache. */
enum { PAST_CACHE_BYTES = 4096 };

static uint32_t row_bytes(const struct tensor *t)
{
	return t->width * type_size(t->wire_type);
}

/* Returns how many of n rows from the first on lie side by side in the caller's memory. */
static uint32_t run(const struct place *places, uint32_t n)
{
	uint32_t i = 1;

	while (i < n && places[i].at == places[0].at + i)
		i++;
	return i;
}

int rows_alloc(struct rw_worker *w, struct tensor *t, uint32_t lanes)
{
	const uint32_t count = (uint32_t)(t->elems / t->width), per_chunk = w->cfg.chunk_bytes / row_bytes(t);
	const uint64_t words = count / 32 + 1, chunks = (count - 1) / per_chunk + 1;
	struct rows *r = calloc(1, sizeof *r + words * sizeof *r->bits + lanes * sizeof *r->flows + chunks * sizeof *r->homes +
					   count * sizeof *r->order);

	if (!r)
		return -ENOMEM;
	*r = (struct rows){.count = count,
			   .per_chunk = per_chunk,
			   .inverse = (uint64_t)INT64_MAX / per_chunk + 1,
			   .bits = (uint32_t *)(r + 1)};
	r->flows = (struct flow *)(r->bits + words);
	r->homes = (struct home *)(r->flows + lanes);
	r->order = (struct place *)(r->homes + chunks);
	for (uint32_t i = 0; i < w->cfg.nlanes; i++) {
		struct lane *l = &w->lanes[i];

		if (!l->sent)
			l->sent = calloc(w->cfg.nstaging, sizeof *l->sent);
		if (!l->sent || grow(&l->flows, w->nsparse + 1, sizeof *l->flows)) {
			free(r);
			return -ENOMEM;
		}
	}
	w->nsparse++;
	t->rows = r;
	return 0;
}

void rows_place(struct rw_worker *w, struct tensor *t)
{
	for (uint32_t i = 0; i < t->nparts; i++) {
		const struct part *p = &w->parts[t->first_part + i];
		struct flow *f = &t->rows->flows[i];

		for (uint32_t k = 0; k < p->count; k++) {
			const struct chunk *c = &w->lanes[p->lane].chunks[p->first + k];

			t->rows->homes[c->offset / t->width / t->rows->per_chunk] = (struct home){.part = i, .row = f->rows};
			f->rows += c->elems / t->width;
		}
		w->lanes[p->lane].firsts += FLOW_CLASSES;
		w->lanes[p->lane].kept += FLOW_CLASSES;
	}
}

static inline uint32_t chunk_of(const struct rows *r, uint32_t row)
{
	return (uint32_t)((unsigned __int128)row * r->inverse >> 63);
}

static int64_t id_at(const struct rw_op *op, uint64_t i)
{
	return op->ids ? op->ids[i] : (int64_t)i;
}

/* Checks the operation's ids, and counts them by lane. */
static int check(const struct rows *r, const struct rw_op *op)
{
	const uint64_t n = op->ids ? op->nids : r->count;
	int64_t before = -1;

	if (n > r->count)
		return rwf_fail(EINVAL, "submit: tensor %u has %u rows, and %llu ids are given: %s", op->tensor, r->count,
				(unsigned long long)n,
				op->kind == RW_PULL ? "pull them by several operations" : "sum the rows of repeated ones");
	for (uint64_t i = 0; i < n; i++) {
		const int64_t row = id_at(op, i);

		if (row < 0 || row >= (int64_t)r->count)
			return rwf_fail(EINVAL, "submit: tensor %u: id %llu is %lld: use rows from 0 to %u", op->tensor,
					(unsigned long long)i, (long long)row, r->count - 1);
		if (op->kind != RW_PULL && row <= before)
			return rwf_fail(
				EINVAL,
				"submit: tensor %u: id %llu is %lld, not above %lld: sort ids, and sum the rows of repeated ones",
				op->tensor, (unsigned long long)i, (long long)row, (long long)before);
		r->flows[r->homes[chunk_of(r, (uint32_t)row)].part].end++;
		before = row;
	}
	return 0;
}

/*
 * Reports whether results could overwrite rows that are not sent yet: the two have memory in common. Those of a whole table in
 * place cannot, because each row has its result's place, and is sent before.
 */
static int overwrites(const struct tensor *t, const struct rw_op *op, uint32_t n)
{
	const uint64_t each = (uint64_t)t->width * type_size(t->memory_type), src = (uintptr_t)op->src, dst = (uintptr_t)op->dst;
	const int in_place = src == dst && n == t->rows->count;

	return op->kind == RW_PUSHPULL && n > 0 && !in_place && src < dst + t->rows->count * each && dst < src + n * each;
}

int rows_begin(struct tensor *t, const struct rw_op *op)
{
	static const uint8_t kinds[] = {[RW_PUSH] = GRADIENT, [RW_PUSHPULL] = GRADIENT_WANTS, [RW_PULL] = PULL};
	struct rows *r = t->rows;
	const uint32_t n = (uint32_t)(op->ids ? op->nids : r->count);
	uint32_t at = 0;
	int rc;

	for (uint32_t i = 0; i < t->nparts; i++)
		r->flows[i] = (struct flow){.rows = r->flows[i].rows};
	rc = check(r, op);
	if (rc)
		return rc;
	if (overwrites(t, op, n))
		return rwf_fail(EINVAL, "submit: tensor %u: its %u rows lie in the destination: give them memory of their own",
				op->tensor, n);
	r->kind = kinds[op->kind];
	r->union_ids = op->union_ids;
	r->nunion = op->nunion;
	for (uint32_t i = 0; i < t->nparts; i++) {
		struct flow *f = &r->flows[i];

		f->first = f->at = at;
		at += f->end;
		f->end = f->first;
	}
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t row = (uint32_t)id_at(op, i), chunk = chunk_of(r, row);
		const struct home *home = &r->homes[chunk];

		r->order[r->flows[home->part].end++] = (struct place){.at = i, .row = home->row + row - chunk * r->per_chunk};
	}
	return 0;
}

void rows_queue(struct rw_worker *w, struct tensor *t)
{
	for (uint32_t i = 0; i < t->nparts; i++) {
		const struct flow *f = &t->rows->flows[i];
		const struct part *p = &w->parts[t->first_part + i];

		if (t->rows->kind == PULL && f->first == f->end)
			continue;
		w->lanes[p->lane].flows[w->lanes[p->lane].nflows++] = t->first_part + i;
		t->remaining++;
	}
}

static struct flow *flow_of(struct rw_worker *w, uint32_t part)
{
	const struct tensor *t = &w->tensors[w->parts[part].tensor];

	return &t->rows->flows[part - t->first_part];
}

static int has_rows(const struct rows *r, const struct flow *f)
{
	return r->kind == PULL ? f->at < f->end : f->sent < f->rows;
}

int rows_left(struct rw_worker *w, const struct lane *l)
{
	for (uint32_t i = 0; i < l->nflows; i++)
		if (has_rows(w->tensors[w->parts[l->flows[i]].tensor].rows, flow_of(w, l->flows[i])))
			return 1;
	return 0;
}

/*
 * Returns the class of the flow's next message, or FLOW_CLASSES if it may not send now. All flows of a lane together use at most
 * half of what it may have in flight, and each sparse tensor can always have one message of each class there: so neither another
 * tensor nor another worker waits for ever, in whatever order operations begin.
 */
static int next_class(const struct rw_worker *w, const struct lane *l, const struct rows *r, const struct flow *f)
{
	const uint32_t half = w->cfg.nstaging / 2, share = half / l->nflows;
	const uint32_t fetches = r->kind != GRADIENT_WANTS ? 0 : share / 2 < 1 ? 1 : share / 2;
	const uint32_t others = l->kept + (l->requests_open > 0);
	const int spare = l->extra + FLOW_CLASSES * w->nsparse < half && l->in_flight + others < w->cfg.window &&
			  (!w->cfg.by_reference || l->staging_count > others);

	if (r->kind == GRADIENT_WANTS && f->sent > 0 && f->reached < f->rows &&
	    (f->in_flight[FLOW_FETCHES] == 0 || (spare && f->in_flight[FLOW_FETCHES] < fetches)))
		return FLOW_FETCHES;
	if (has_rows(r, f) && (f->in_flight[FLOW_ROWS] == 0 || (spare && f->in_flight[FLOW_ROWS] + fetches < share)))
		return FLOW_ROWS;
	return FLOW_CLASSES;
}

uint32_t rows_next(struct rw_worker *w, const struct lane *l, int *class)
{
	uint32_t best = NONE;

	if (l->nflows == 0 || l->in_flight >= w->cfg.window || (w->cfg.by_reference && l->staging_count == 0))
		return NONE;
	for (uint32_t i = 0; i < l->nflows; i++) {
		const struct tensor *t = &w->tensors[w->parts[l->flows[i]].tensor];
		const int next = next_class(w, l, t->rows, flow_of(w, l->flows[i]));

		if (next != FLOW_CLASSES && (best == NONE || queue_before(w, l->flows[i], best))) {
			best = l->flows[i];
			*class = next;
		}
	}
	return best;
}

/* How many rows ahead the caller's are prefetched. Those between belong to other lanes, so the hardware sees no stride. */
#define AHEAD 16

static inline __attribute__((always_inline)) void prefetch(const void *memory, const struct tensor *t, const struct place *place,
							   const int write)
{
	const uint64_t each = t->width * type_size(t->memory_type), bytes = each < 2048 ? each : 2048;
	const char *row = (const char *)memory + place->at * each;

	for (uint64_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(row + i, write);
}

/* Prefetches the rows AHEAD of a run of some rows at the first of n places. A longer run is left to the hardware. */
static inline __attribute__((always_inline)) void
prefetch_ahead(const void *memory, const struct tensor *t, const struct place *places, uint32_t n, uint32_t some, const int write)
{
	for (uint32_t k = AHEAD; some <= AHEAD && k < AHEAD + some && k < n; k++)
		prefetch(memory, t, &places[k], write);
}

/* Writes the operation's rows at n places to a payload. */
static void put_rows(const struct rw_worker *w, const struct tensor *t, const struct place *places, uint32_t n, char *payload)
{
	for (uint32_t i = 0, some; i < n; i += some) {
		some = run(places + i, n - i);
		prefetch_ahead(t->src, t, places + i, n - i, some, 0);
		rwk_convert(w->cfg.isa, (uintptr_t)payload + (uint64_t)i * row_bytes(t), t->wire_type,
			    (uintptr_t)t->src + (uint64_t)places[i].at * t->width * type_size(t->memory_type), t->memory_type,
			    (uint64_t)some * t->width, 0);
	}
}

/* Returns how many rows a gradient has at most, as a block of results: so blocks and messages of all rows end at the same ones. */
static uint32_t most_rows(const struct rw_worker *w, const struct tensor *t)
{
	return (w->cfg.chunk_bytes - (uint32_t)sizeof(struct header)) / (4 + row_bytes(t));
}

static void set_bits(uint32_t *words, uint64_t from, uint64_t n)
{
	for (uint64_t end = from + n, next; from < end; from = next) {
		next = from - from % 32 + 32;
		next = next < end ? next : end;
		words[from / 32] |= UINT32_MAX >> (32 - (next - from)) << from % 32;
	}
}

/* Writes as many of the flow's rows as fit into a message. Returns its length. */
static uint32_t put_gradient(const struct rw_worker *w, const struct tensor *t, struct flow *f, char *payload)
{
	const struct rows *r = t->rows;
	const struct place *places = r->order + f->at;
	const uint32_t left = f->end - f->at, most = most_rows(w, t);
	struct header h = {.from = f->sent, .count = left < most ? left : most, .kind = r->kind, .form = FORM_IDS};
	uint32_t length = h.count, words, *list = (uint32_t *)(uintptr_t)(payload + sizeof h);

	h.to = h.count < left ? places[h.count].row : f->rows;
	words = (h.to - h.from) / 32 + ((h.to - h.from) % 32 > 0);
	if (words < h.count) {
		h.form = FORM_BITMAP;
		length = words;
		memset(list, 0, 4 * (size_t)words);
	}
	memcpy(payload, &h, sizeof h);
	for (uint32_t i = 0, n; h.form == FORM_BITMAP && i < h.count; i += n) {
		n = 1;
		while (i + n < h.count && places[i + n].row == places[i].row + n)
			n++;
		set_bits(list, places[i].row - h.from, n);
	}
	for (uint32_t i = 0; h.form == FORM_IDS && i < h.count; i++)
		list[i] = places[i].row;
	put_rows(w, t, places, h.count, (char *)(list + length));
	f->at += h.count;
	f->sent = h.to;
	return (uint32_t)sizeof h + 4 * length + h.count * row_bytes(t);
}

static uint32_t put_pull(const struct rw_worker *w, const struct tensor *t, struct flow *f, char *payload)
{
	struct header h = {.count = f->end - f->at, .kind = PULL, .form = FORM_IDS};
	const uint32_t ids = (w->cfg.chunk_bytes - (uint32_t)sizeof h) / 4, rows = w->cfg.chunk_bytes / row_bytes(t);
	uint32_t *list = (uint32_t *)(uintptr_t)(payload + sizeof h);

	h.count = h.count < ids ? h.count : ids;
	h.count = h.count < rows ? h.count : rows;
	memcpy(payload, &h, sizeof h);
	for (uint32_t i = 0; i < h.count; i++)
		list[i] = t->rows->order[f->at++].row;
	return (uint32_t)sizeof h + 4 * h.count;
}

uint32_t rows_put(struct rw_worker *w, struct lane *l, uint32_t part, int class, uint16_t staging)
{
	const struct header fetch = {.kind = FETCH};
	const struct tensor *t = &w->tensors[w->parts[part].tensor];
	struct flow *f = flow_of(w, part);
	char *payload = staging_at(w, l, staging);
	struct sent *m = &l->sent[staging];
	uint32_t length = sizeof fetch;

	m->first = f->at;
	if (class == FLOW_FETCHES)
		memcpy(payload, &fetch, sizeof fetch);
	else
		length = t->rows->kind == PULL ? put_pull(w, t, f, payload) : put_gradient(w, t, f, payload);
	m->count = f->at - m->first;
	if (f->in_flight[class]++ > 0) {
		l->sent[f->newest[class]].next = staging;
		l->extra++;
	} else {
		f->oldest[class] = staging;
		l->kept--;
	}
	f->newest[class] = staging;
	l->fetches += class == FLOW_FETCHES;
	return length;
}

/* Returns how many of n ids follow each other, from the first on. Its value was read already. */
static uint32_t consecutive(const uint32_t *ids, uint32_t n, uint32_t first)
{
	uint32_t i = 1;

	while (i < n && ids[i] == first + i)
		i++;
	return i;
}

/* Writes the rows of a block of results to their places. Returns NULL, or what is wrong with the block. */
static const char *take_block(struct rw_worker *w, const struct lane *l, const struct part *p, struct flow *f, const char *payload,
			      uint32_t length)
{
	const struct tensor *t = &w->tensors[p->tensor];
	const uint32_t each = row_bytes(t), cap = most_rows(w, t), per_chunk = t->rows->per_chunk;
	const uint64_t to_bytes = (uint64_t)t->width * type_size(t->memory_type);
	const uint32_t *ids = (const uint32_t *)(uintptr_t)(payload + sizeof(struct header));
	const char *rows = (const char *)(ids + cap);
	uint64_t start = 0; /* the first of a chunk's rows among the tensor's, and in the lane */
	uint32_t first = 0;
	struct header h;

	if (length < sizeof h)
		return "it is shorter than a header";
	memcpy(&h, payload, sizeof h);
	if (h.kind != BLOCK || h.form != FORM_IDS || h.to < f->reached || h.to > f->rows || h.count > cap ||
	    length != sizeof h + (h.count ? 4 * cap + h.count * each : 0))
		return "its header is wrong";
	for (uint32_t i = 0, n; i < h.count; i += n) {
		const uint32_t id = ids[i];
		uint64_t row;

		if (id < f->reached || id >= h.to)
			return "its rows are not ascending";
		if (i == 0 || id - first >= per_chunk) {
			first = id - id % per_chunk;
			start = l->chunks[p->first + id / per_chunk].offset / t->width;
		}
		n = first + per_chunk - id < h.count - i ? first + per_chunk - id : h.count - i;
		n = consecutive(ids + i, n, id);
		if (n > h.to - id)
			return "its rows are not ascending";
		row = start + id - first;
		rwk_convert(w->cfg.isa, (uintptr_t)t->dst + row * to_bytes, t->memory_type, (uintptr_t)rows + (uint64_t)i * each,
			    t->wire_type, (uint64_t)n * t->width, past_cache(w) && n * to_bytes >= PAST_CACHE_BYTES);
		set_bits(t->rows->bits, row, n);
		f->reached = id + n;
	}
	f->reached = h.to;
	return NULL;
}

/* Writes the rows of the answer to a pull to the places of their ids. */
static const char *take_pulled(struct rw_worker *w, const struct tensor *t, const struct sent *m, const char *payload,
			       uint32_t length)
{
	const struct place *places = t->rows->order + m->first;
	const uint64_t to_bytes = (uint64_t)t->width * type_size(t->memory_type);

	if (length != m->count * row_bytes(t))
		return "its length is wrong";
	for (uint32_t i = 0, some; i < m->count; i += some) {
		some = run(places + i, m->count - i);
		prefetch_ahead(t->dst, t, places + i, m->count - i, some, 1);
		rwk_convert(w->cfg.isa, (uintptr_t)t->dst + places[i].at * to_bytes, t->memory_type,
			    (uintptr_t)payload + (uint64_t)i * row_bytes(t), t->wire_type, (uint64_t)some * t->width,
			    past_cache(w) && some * to_bytes >= PAST_CACHE_BYTES);
	}
	return NULL;
}

/* Lists the rows that had results, and forgets them. */
static void take_union(struct rows *r)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i <= r->count / 32; i++) {
		for (uint32_t left = r->bits[i]; left; left &= left - 1, n++)
			if (r->union_ids)
				r->union_ids[n] = (int64_t)(i * 32) + __builtin_ctz(left);
		r->bits[i] = 0;
	}
	if (r->nunion)
		*r->nunion = n;
}

/* Ends a flow that has nothing more to send or to get, and with the last one the operation. */
static void end(struct rw_worker *w, struct lane *l, uint32_t part)
{
	struct tensor *t = &w->tensors[w->parts[part].tensor];
	const struct flow *f = flow_of(w, part);

	if (f->in_flight[FLOW_ROWS] || f->in_flight[FLOW_FETCHES] || f->at < f->end ||
	    (t->rows->kind != PULL && f->sent < f->rows) || (t->rows->kind == GRADIENT_WANTS && f->reached < f->rows))
		return;
	for (uint32_t i = 0; i < l->nflows; i++)
		if (l->flows[i] == part)
			l->flows[i] = l->flows[--l->nflows];
	if (--t->remaining > 0)
		return;
	if (t->rows->kind == GRADIENT_WANTS)
		take_union(t->rows);
	tensor_done(w, w->parts[part].tensor, 0);
}

int rows_receive(struct rw_worker *w, struct lane *l, const struct chunk *c, const struct rwf_wc *wc)
{
	const struct tensor *t = &w->tensors[c->tensor];
	const struct part *p = &w->parts[c->part];
	struct flow *f = flow_of(w, c->part);
	const int class = t->rows->kind == GRADIENT_WANTS && wc->byte_len > 0 ? FLOW_FETCHES : FLOW_ROWS;
	const char *wrong = NULL;
	uint16_t staging;

	if (imm_op(wc->imm) != RW_PUSH || imm_epoch(wc->imm) != t->epoch || imm_index(wc->imm) != p->first || !f->in_flight[class])
		return worker_fail(
			w, RW_EPROTOCOL,
			"lane %td: rows of tensor %u answered with op %u, epoch %u, chunk %u, %u bytes; expected op %d, epoch %u, "
			"chunk %u, and %u messages are in flight",
			l - w->lanes, c->tensor, imm_op(wc->imm), imm_epoch(wc->imm), imm_index(wc->imm), wc->byte_len, RW_PUSH,
			t->epoch, p->first, f->in_flight[class]);
	staging = f->oldest[class];
	if (class == FLOW_FETCHES)
		wrong = take_block(w, l, p, f, staging_at(w, l, staging), wc->byte_len);
	else if (t->rows->kind == PULL)
		wrong = take_pulled(w, t, &l->sent[staging], staging_at(w, l, staging), wc->byte_len);
	else if (wc->byte_len > 0)
		wrong = "a gradient's answer is empty";
	if (wrong)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: rows of tensor %u answered with %u bytes, but %s", l - w->lanes,
				   c->tensor, wc->byte_len, wrong);
	f->oldest[class] = l->sent[staging].next;
	l->fetches -= class == FLOW_FETCHES;
	if (--f->in_flight[class] > 0)
		l->extra--;
	else
		l->kept++;
	end(w, l, c->part);
	return staging;
}
