/* Which chunk a lane sends next: what the aggregator requested, then by priority, then what it NACKed. */
#include "internal.h"

/* Whether part a goes before part b: by priority, then in the order of submission. */
static int before(struct rw_worker *w, const struct lane *l, uint32_t a, uint32_t b)
{
	const struct tensor *x = &w->tensors[l->parts[a].tensor], *y = &w->tensors[l->parts[b].tensor];

	return x->priority != y->priority ? x->priority > y->priority : x->seq < y->seq;
}

static void heap_put(struct lane *l, uint32_t i, uint32_t part)
{
	l->heap[i] = part;
	l->parts[part].heap_at = i;
}

/* Moves a part from place i to where it belongs: as one that is new there, or whose priority changed. */
static void heap_sift(struct rw_worker *w, struct lane *l, uint32_t i, uint32_t part)
{
	for (; i > 0 && before(w, l, part, l->heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap_put(l, i, l->heap[(i - 1) / 2]);
	for (uint32_t child; (child = 2 * i + 1) < l->heap_len; i = child) {
		if (child + 1 < l->heap_len && before(w, l, l->heap[child + 1], l->heap[child]))
			child++;
		if (before(w, l, part, l->heap[child]))
			break;
		heap_put(l, i, l->heap[child]);
	}
	heap_put(l, i, part);
}

static void heap_pop(struct rw_worker *w, struct lane *l)
{
	uint32_t last = l->heap[--l->heap_len];

	l->parts[l->heap[0]].heap_at = NONE;
	if (l->heap_len > 0)
		heap_sift(w, l, 0, last);
}

static void chain_request(struct lane *l, uint32_t index)
{
	if (l->chunks[index].chained)
		return;
	l->chunks[index].chained = 1;
	l->chunks[index].next_request = l->request_head;
	l->request_head = index;
}

void queue_part(struct rw_worker *w, struct lane *l, uint32_t part)
{
	struct part *p = &l->parts[part];

	p->cursor = p->first;
	for (uint32_t i = p->first; i < p->first + p->count; i++) {
		l->chunks[i].state = CHUNK_PENDING;
		if (l->chunks[i].requested)
			chain_request(l, i);
	}
	/* It may still stand there from its last operation: a part is taken out only when it is looked at. */
	heap_sift(w, l, p->heap_at == NONE ? l->heap_len++ : p->heap_at, part);
}

static void again_pop(struct lane *l)
{
	l->chunks[l->again[l->again_head]].in_again = 0;
	l->again_head = (l->again_head + 1) % l->nchunks;
	l->again_count--;
}

/* The next chunk to send, NONE if there is none: what the aggregator asked for, then by priority, then what it gave back. */
uint32_t queue_next(struct rw_worker *w, struct lane *l)
{
	if (l->last_request != NONE && l->chunks[l->last_request].requested && l->chunks[l->last_request].state == CHUNK_PENDING)
		return l->last_request;
	while (l->request_head != NONE) {
		struct chunk *c = &l->chunks[l->request_head];

		if (c->requested && c->state == CHUNK_PENDING)
			return l->request_head;
		c->chained = 0;
		l->request_head = c->next_request;
	}
	/* The last slot is kept for what the aggregator asked for, or it could fill with what only this worker has sent. */
	if (l->in_flight + (l->requests_open > 0) >= w->cfg.window)
		return NONE;
	while (l->heap_len > 0) {
		struct part *p = &l->parts[l->heap[0]];

		for (; p->cursor < p->first + p->count; p->cursor++)
			if (l->chunks[p->cursor].state == CHUNK_PENDING)
				return p->cursor;
		heap_pop(w, l);
	}
	while (l->again_count > 0) {
		uint32_t index = l->again[l->again_head];

		if (l->chunks[index].state == CHUNK_PENDING)
			return index;
		again_pop(l);
	}
	return NONE;
}

void queue_sent(struct lane *l, uint32_t index)
{
	struct chunk *c = &l->chunks[index];
	struct part *p = &l->parts[c->part];

	if (c->requested) {
		c->requested = 0;
		l->requests_open--;
	}
	/* Not to be found there again: one that is NACKed goes behind all else. */
	p->cursor += p->cursor == index;
	if (l->again_count > 0 && l->again[l->again_head] == index)
		again_pop(l);
}

void queue_request(struct lane *l, uint32_t index)
{
	struct chunk *c = &l->chunks[index];

	l->last_request = index;
	if (c->state == CHUNK_IN_FLIGHT || c->requested)
		return;
	c->requested = 1;
	l->requests_open++;
	if (c->state == CHUNK_PENDING)
		chain_request(l, index);
}

void queue_again(struct lane *l, uint32_t index)
{
	struct chunk *c = &l->chunks[index];

	if (c->in_again)
		return;
	c->in_again = 1;
	l->again[(l->again_head + l->again_count++) % l->nchunks] = index;
}
