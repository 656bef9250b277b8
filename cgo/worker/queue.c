/* The order in which a lane sends chunks: requested ones, then by priority, then NACKed ones. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

/* Reports whether part a goes before part b: by priority, then in the order of submission. */
static int before(const struct rw_worker *w, uint32_t a, uint32_t b)
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
	for (; i > 0 && before(w, part, l->heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap_put(w, l, i, l->heap[(i - 1) / 2]);
	for (uint32_t child; (child = 2 * i + 1) < l->heap_len; i = child) {
		if (child + 1 < l->heap_len && before(w, l->heap[child + 1], l->heap[child]))
			child++;
		if (before(w, part, l->heap[child]))
			break;
		heap_put(w, l, i, l->heap[child]);
	}
	heap_put(w, l, i, part);
}

static void heap_remove(struct rw_worker *w, struct lane *l, uint32_t i)
{
	uint32_t last = l->heap[--l->heap_len];

	w->parts[l->heap[i]].heap_at = NONE;
	if (i < l->heap_len)
		heap_sift(w, l, i, last);
}

static void chain_request(struct lane *l, struct chunk *c, uint32_t index)
{
	if (c->chained)
		return;
	c->chained = 1;
	c->next[REQUESTED] = l->request_head;
	l->request_head = index;
}

static void queue_chunk(struct lane *l, struct chunk *c, uint32_t index)
{
	c->state = CHUNK_PENDING;
	if (c->requested)
		chain_request(l, c, index);
}

void queue_part(struct rw_worker *w, uint32_t part)
{
	struct part *p = &w->parts[part];
	struct lane *l = &w->lanes[p->lane];

	p->cursor = p->first;
	p->guest_cursor = p->guests;
	for (uint32_t i = p->first; i < p->first + p->count; i++)
		if (!l->chunks[i].away)
			queue_chunk(l, &l->chunks[i], i);
	for (uint32_t i = p->guests; i != NONE; i = guest_at(w, i)->next[GUESTS])
		queue_chunk(l, guest_at(w, i), i);
	/* The part may still be in the heap from its last operation, because it is removed only when it is considered. */
	heap_sift(w, l, p->heap_at == NONE ? l->heap_len++ : p->heap_at, part);
}

static void again_pop(struct rw_worker *w, struct lane *l)
{
	struct chunk *c = chunk_at(w, l, l->again_head);

	c->in_again = 0;
	l->again_head = c->next[AGAIN];
}

/* Returns the next of a part's chunks to send, or NONE. */
static uint32_t part_next(struct rw_worker *w, struct lane *l, struct part *p)
{
	for (; p->cursor < p->first + p->count; p->cursor++)
		if (l->chunks[p->cursor].state == CHUNK_PENDING && !l->chunks[p->cursor].away)
			return p->cursor;
	for (; p->guest_cursor != NONE; p->guest_cursor = guest_at(w, p->guest_cursor)->next[GUESTS])
		if (guest_at(w, p->guest_cursor)->state == CHUNK_PENDING)
			return p->guest_cursor;
	return NONE;
}

/* Returns the next chunk to send, or NONE: requested ones, then by priority, then NACKed ones. */
uint32_t queue_next(struct rw_worker *w, struct lane *l)
{
	uint32_t index;

	if (l->last_request != NONE) {
		const struct chunk *c = chunk_at(w, l, l->last_request);

		if (c->requested && c->state == CHUNK_PENDING)
			return l->last_request;
	}
	while (l->request_head != NONE) {
		struct chunk *c = chunk_at(w, l, l->request_head);

		if (c->requested && c->state == CHUNK_PENDING)
			return l->request_head;
		c->chained = 0;
		l->request_head = c->next[REQUESTED];
	}
	/* The last slot is reserved for requested chunks. Otherwise it could fill with a chunk that only this worker has sent. */
	if (l->in_flight + (l->requests_open > 0) >= w->cfg.window)
		return NONE;
	while (l->heap_len > 0) {
		index = part_next(w, l, &w->parts[l->heap[0]]);
		if (index != NONE)
			return index;
		heap_remove(w, l, 0);
	}
	while (l->again_head != NONE && chunk_at(w, l, l->again_head)->state != CHUNK_PENDING)
		again_pop(w, l);
	return l->again_head;
}

void queue_sent(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);
	struct part *p = &w->parts[c->part];

	if (c->requested) {
		c->requested = 0;
		l->requests_open--;
	}
	/* The cursor passes the chunk, because a NACKed chunk goes behind all others. */
	p->cursor += p->cursor == index;
	if (p->guest_cursor == index)
		p->guest_cursor = c->next[GUESTS];
	if (l->again_head == index)
		again_pop(w, l);
}

void queue_request(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);

	l->last_request = index;
	if (c->state == CHUNK_IN_FLIGHT || c->requested)
		return;
	c->requested = 1;
	l->requests_open++;
	if (c->state == CHUNK_PENDING)
		chain_request(l, c, index);
}

void queue_again(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);

	if (c->in_again)
		return;
	c->in_again = 1;
	c->next[AGAIN] = NONE;
	*(l->again_head == NONE ? &l->again_head : &chunk_at(w, l, l->again_tail)->next[AGAIN]) = index;
	l->again_tail = index;
}

/* Takes a chunk out of a chain. */
static void unchain(struct rw_worker *w, struct lane *l, uint32_t *at, enum chain chain, uint32_t index)
{
	while (*at != NONE && *at != index)
		at = &chunk_at(w, l, *at)->next[chain];
	if (*at == index)
		*at = chunk_at(w, l, index)->next[chain];
}

void queue_forget(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);
	struct part *p = &w->parts[c->part];

	if (l->last_request == index)
		l->last_request = NONE;
	if (c->chained)
		unchain(w, l, &l->request_head, REQUESTED, index);
	if (c->in_again)
		unchain(w, l, &l->again_head, AGAIN, index);
	if (l->again_tail == index)
		for (uint32_t i = l->again_head; i != NONE; i = chunk_at(w, l, i)->next[AGAIN])
			l->again_tail = i;
	c->chained = c->in_again = 0;
	if (p->guest_cursor == index)
		p->guest_cursor = c->next[GUESTS];
	unchain(w, l, &p->guests, GUESTS, index);
	if (p->count == 0 && p->guests == NONE) {
		if (p->heap_at != NONE)
			heap_remove(w, l, p->heap_at);
		p->lane = NONE;
	}
}
