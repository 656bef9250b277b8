/* The order in which a lane sends chunks: requested ones, then by priority, then NACKed ones. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

/* Reports whether part a goes before part b: by priority, then in the order of submission. */
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

/* Moves a part that is new at place i, or whose priority changed, to its place in the heap. */
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

static void chain_request(struct lane *l, struct chunk *c, uint32_t index)
{
	if (c->chained)
		return;
	c->chained = 1;
	c->next_request = l->request_head;
	l->request_head = index;
}

static void queue_chunk(struct lane *l, struct chunk *c, uint32_t index)
{
	c->state = CHUNK_PENDING;
	if (c->requested)
		chain_request(l, c, index);
}

void queue_part(struct rw_worker *w, struct lane *l, uint32_t part)
{
	struct part *p = &l->parts[part];

	p->cursor = p->first;
	p->guest_cursor = p->guests;
	for (uint32_t i = p->first; i < p->first + p->count; i++)
		if (!l->chunks[i].away)
			queue_chunk(l, &l->chunks[i], i);
	for (uint32_t i = p->guests; i != NONE; i = guest_at(w, i)->next_guest)
		queue_chunk(l, guest_at(w, i), i);
	/* The part may still be in the heap from its last operation, because a part is removed only when it is considered. */
	heap_sift(w, l, p->heap_at == NONE ? l->heap_len++ : p->heap_at, part);
}

static void again_pop(struct rw_worker *w, struct lane *l)
{
	chunk_at(w, l, l->again[l->again_head])->in_again = 0;
	l->again_head = (l->again_head + 1) % l->again_cap;
	l->again_count--;
}

/* Returns the next of a part's chunks to send, or NONE. */
static uint32_t part_next(struct rw_worker *w, struct lane *l, struct part *p)
{
	for (; p->cursor < p->first + p->count; p->cursor++)
		if (l->chunks[p->cursor].state == CHUNK_PENDING && !l->chunks[p->cursor].away)
			return p->cursor;
	for (; p->guest_cursor != NONE; p->guest_cursor = guest_at(w, p->guest_cursor)->next_guest)
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
		l->request_head = c->next_request;
	}
	/* The last slot is reserved for requested chunks. Otherwise it could fill with a chunk that only this worker has sent. */
	if (l->in_flight + (l->requests_open > 0) >= w->cfg.window)
		return NONE;
	while (l->heap_len > 0) {
		index = part_next(w, l, &l->parts[l->heap[0]]);
		if (index != NONE)
			return index;
		heap_pop(w, l);
	}
	while (l->again_count > 0) {
		index = l->again[l->again_head];
		if (chunk_at(w, l, index)->state == CHUNK_PENDING)
			return index;
		again_pop(w, l);
	}
	return NONE;
}

void queue_sent(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);
	struct part *p = &l->parts[part_at(w, l, index)];

	if (c->requested) {
		c->requested = 0;
		l->requests_open--;
	}
	/* The cursor passes the chunk, because a NACKed chunk goes behind all others. */
	p->cursor += p->cursor == index;
	if (p->guest_cursor == index)
		p->guest_cursor = c->next_guest;
	if (l->again_count > 0 && l->again[l->again_head] == index)
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
	l->again[(l->again_head + l->again_count++) % l->again_cap] = index;
}

int queue_reserve(struct lane *l, uint32_t n)
{
	uint32_t *again;

	if (n <= l->again_cap)
		return 0;
	again = calloc(n, sizeof *again);
	if (!again)
		return -ENOMEM;
	for (uint32_t i = 0; i < l->again_count; i++)
		again[i] = l->again[(l->again_head + i) % l->again_cap];
	free(l->again);
	l->again = again;
	l->again_head = 0;
	l->again_cap = n;
	return 0;
}

void queue_forget(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);
	uint32_t kept = 0, *at = &l->request_head;

	if (l->last_request == index)
		l->last_request = NONE;
	for (; c->chained && *at != NONE; at = &chunk_at(w, l, *at)->next_request)
		if (*at == index) {
			*at = c->next_request;
			c->chained = 0;
			break;
		}
	for (uint32_t i = 0; c->in_again && i < l->again_count; i++) {
		uint32_t other = l->again[(l->again_head + i) % l->again_cap];

		if (other != index)
			l->again[(l->again_head + kept++) % l->again_cap] = other;
	}
	if (c->in_again)
		l->again_count = kept;
	c->in_again = 0;
}
