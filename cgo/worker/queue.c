/* The order in which a lane sends chunks: requested ones, then by priority, then NACKed ones. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

int queue_before(const struct rw_worker *w, uint32_t a, uint32_t b)
{
	const struct tensor *x = &w->tensors[w->parts[a].tensor], *y = &w->tensors[w->parts[b].tensor];

	return x->priority != y->priority ? x->priority > y->priority : x->seq < y->seq;
}

static void heap_put(struct rw_worker *w, struct lane *l, uint32_t i, uint32_t part)
{
	l->heap[i] = part;
	w->parts[part].heap_at = i;
}

/* Moves a part that is new at place i, or whose priority changed, to its place in the heap. */
static void heap_sift(struct rw_worker *w, struct lane *l, uint32_t i, uint32_t part)
{
	for (; i > 0 && queue_before(w, part, l->heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap_put(w, l, i, l->heap[(i - 1) / 2]);
	for (uint32_t child; (child = 2 * i + 1) < l->heap_len; i = child) {
		if (child + 1 < l->heap_len && queue_before(w, l->heap[child + 1], l->heap[child]))
			child++;
		if (queue_before(w, part, l->heap[child]))
			break;
		heap_put(w, l, i, l->heap[child]);
	}
	heap_put(w, l, i, part);
}

static void heap_pop(struct rw_worker *w, struct lane *l)
{
	uint32_t last = l->heap[--l->heap_len];

	w->parts[l->heap[0]].heap_at = NONE;
	if (l->heap_len > 0)
		heap_sift(w, l, 0, last);
}

static void chain_request(struct lane *l, struct chunk *c, uint32_t index)
{
	if (c->chained)
		return;
	c->chained = 1;
	c->next[REQUESTED] = l->request_head;
	l->request_head = index;
}

void queue_part(struct rw_worker *w, uint32_t part)
{
	struct part *p = &w->parts[part];
	struct lane *l = &w->lanes[p->lane];

	p->cursor = p->first;
	for (uint32_t i = p->first; i < p->first + p->count; i++) {
		struct chunk *c = &l->chunks[i];

		c->state = CHUNK_PENDING;
		if (c->requested)
			chain_request(l, c, i);
	}
	/* The part may still be in the heap from its last operation, because it is removed only when it is considered. */
	heap_sift(w, l, p->heap_at == NONE ? l->heap_len++ : p->heap_at, part);
}

static void again_pop(struct lane *l)
{
	struct chunk *c = &l->chunks[l->again_head];

	c->in_again = 0;
	l->again_head = c->next[AGAIN];
}

/* Returns the next of a part's chunks to send, or NONE. */
static uint32_t part_next(const struct lane *l, struct part *p)
{
	for (; p->cursor < p->first + p->count; p->cursor++)
		if (l->chunks[p->cursor].state == CHUNK_PENDING)
			return p->cursor;
	return NONE;
}

/* Returns the next chunk to send, or NONE: requested ones, then by priority, then NACKed ones. */
uint32_t queue_next(struct rw_worker *w, struct lane *l)
{
	uint32_t index;

	/* Slots are kept for streams of rows, because another worker may send its rows first, and wait for them. */
	if (l->in_flight + l->kept >= w->cfg.window)
		return NONE;
	if (l->last_request != NONE) {
		const struct chunk *c = &l->chunks[l->last_request];

		if (c->requested && c->state == CHUNK_PENDING)
			return l->last_request;
	}
	while (l->request_head != NONE) {
		struct chunk *c = &l->chunks[l->request_head];

		if (c->requested && c->state == CHUNK_PENDING)
			return l->request_head;
		c->chained = 0;
		l->request_head = c->next[REQUESTED];
	}
	/* The last slot is reserved for requested chunks. Otherwise it could fill with a chunk that only this worker has sent. */
	if (l->in_flight + l->kept + (l->requests_open > 0) >= w->cfg.window)
		return NONE;
	while (l->heap_len > 0) {
		index = part_next(l, &w->parts[l->heap[0]]);
		if (index != NONE)
			return index;
		heap_pop(w, l);
	}
	while (l->again_head != NONE && l->chunks[l->again_head].state != CHUNK_PENDING)
		again_pop(l);
	return l->again_head;
}

void queue_sent(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = &l->chunks[index];
	struct part *p = &w->parts[c->part];

	if (c->requested) {
		c->requested = 0;
		l->requests_open--;
	}
	/* The cursor passes the chunk, because a NACKed chunk goes behind all others. */
	p->cursor += p->cursor == index;
	if (l->again_head == index)
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
		chain_request(l, c, index);
}

void queue_again(struct lane *l, uint32_t index)
{
	struct chunk *c = &l->chunks[index];

	if (c->in_again)
		return;
	c->in_again = 1;
	c->next[AGAIN] = NONE;
	*(l->again_head == NONE ? &l->again_head : &l->chunks[l->again_tail].next[AGAIN]) = index;
	l->again_tail = index;
}
