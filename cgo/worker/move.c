/*
 * Chunks that move from one lane to another. The aggregator announces a move ahead of an answer, and from the next operation on the
 * chunk is sent in the other lane. Its state stays with its home, the lane to which it was added. A guest's index leads there.
 */
#include "internal.h"

#include <errno.h>

struct part *part_in(struct rw_worker *w, uint32_t tensor, uint32_t lane)
{
	const struct tensor *t = &w->tensors[tensor];
	struct part *spare = NULL; /* there is one if the tensor has no part in the lane (parts_of) */

	for (struct part *p = &w->parts[t->first_part]; p < &w->parts[t->first_part + t->nparts]; p++) {
		if (p->lane == lane)
			return p;
		if (p->lane == NONE)
			spare = p;
	}
	*spare = (struct part){.tensor = tensor,
			       .lane = lane,
			       .name = tensor | RW_GUEST_BIT,
			       .guests = NONE,
			       .guest_cursor = NONE,
			       .heap_at = NONE,
			       .record_dirty = t->recorded};
	return spare;
}

int move_begin(struct rw_worker *w, struct lane *l, uint32_t index, uint32_t to)
{
	struct chunk *c = chunk_at(w, l, index);

	if (c->state != CHUNK_IN_FLIGHT || to >= w->cfg.nlanes || &w->lanes[to] == l)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: chunk %u moves to lane %u of %u, and is %s", l - w->lanes, index, to,
				   w->cfg.nlanes, c->state == CHUNK_IN_FLIGHT ? "sent" : "not sent");
	c->to = (uint8_t)(to + 1);
	return 0;
}

void move_end(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);
	const uint32_t lane = (uint32_t)(l - w->lanes), to = c->to - 1u;
	/* Its index as a guest (worker.h). */
	const uint32_t guest = index < l->nchunks ? (index * w->cfg.nlanes + lane) | RW_GUEST_BIT : index;
	struct part *p;

	queue_forget(w, l, index);
	p = part_in(w, c->tensor, to);
	c->part = (uint32_t)(p - w->parts);
	c->to = 0;
	c->away = to != (guest & ~(uint32_t)RW_GUEST_BIT) % w->cfg.nlanes;
	if (!c->away)
		return;
	c->next[GUESTS] = p->guests;
	p->guests = guest;
}
