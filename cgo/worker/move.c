/*
 * Chunks that move from one lane to another. The aggregator announces a move ahead of an answer, and from the next operation on the
 * chunk is sent in the other lane. Its state stays with its home, the lane to which it was added. A guest's index leads there.
 */
#include "internal.h"

#include <errno.h>

struct part *part_named(struct rw_worker *w, struct lane *l, uint32_t name)
{
	uint32_t tensor = name < l->nnames ? l->names[name] : name ^ RW_GUEST_BIT;

	return tensor < w->ntensors ? &l->parts[tensor] : NULL;
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
	struct part *p = &w->lanes[to].parts[c->tensor];

	queue_forget(w, l, index);
	c->to = 0;
	c->away = to != (guest & ~(uint32_t)RW_GUEST_BIT) % w->cfg.nlanes;
	if (!c->away)
		return;
	c->next[GUESTS] = p->guests;
	p->guests = guest;
}
