/*
 * Chunks that move from one lane to another. The aggregator announces a move ahead of an answer, and from the next operation on the
 * chunk is sent in the other lane. Its state stays with its home, the lane to which it was added. A guest's index leads there.
 */
#include "internal.h"

#include <errno.h>

struct part *part_named(struct rw_worker *w, struct lane *l, uint32_t name)
{
	uint32_t tensor = name & ~(uint32_t)RW_GUEST_BIT;

	if (name < l->nhomes)
		return &l->parts[l->homes[name]];
	if (!(name & RW_GUEST_BIT) || tensor >= w->ntensors)
		return NULL;
	return part_of(w, &w->tensors[tensor], (uint32_t)(l - w->lanes));
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

/* Returns the lane's part of a tensor. Makes the part if the lane has none. */
static struct part *part_for(struct rw_worker *w, struct lane *l, uint32_t tensor)
{
	struct tensor *t = &w->tensors[tensor];
	uint32_t *at = &w->part_index[t->first_part + (uint32_t)(l - w->lanes)];

	if (*at == NONE) {
		if (grow(&l->parts, l->nparts + 1, sizeof *l->parts) || grow(&l->heap, l->nparts + 1, sizeof *l->heap))
			return NULL;
		*at = l->nparts++;
		l->parts[*at] = (struct part){.tensor = tensor,
					      .name = tensor | RW_GUEST_BIT,
					      .guests = NONE,
					      .guest_cursor = NONE,
					      .record_dirty = t->recorded,
					      .heap_at = NONE};
	}
	return &l->parts[*at];
}

static void part_forget(struct rw_worker *w, struct part *p, uint32_t index)
{
	uint32_t *at = &p->guests;

	while (*at != NONE && *at != index)
		at = &guest_at(w, *at)->next_guest;
	if (*at == index)
		*at = guest_at(w, index)->next_guest;
	if (p->guest_cursor == index)
		p->guest_cursor = guest_at(w, index)->next_guest;
}

int move_end(struct rw_worker *w, struct lane *l, uint32_t index)
{
	struct chunk *c = chunk_at(w, l, index);
	struct lane *to = &w->lanes[c->to - 1], *home;
	uint32_t tensor = tensor_at(w, l, index), at = index;
	struct part *p;

	queue_forget(w, l, index);
	if (index >= l->nchunks) {
		part_forget(w, &l->parts[part_at(w, l, index)], index);
		l->nguests--;
	}
	c->to = 0;
	home = home_of(w, l, &at);
	c->away = to != home;
	if (!c->away)
		return 0;
	p = part_for(w, to, tensor);
	if (!p || queue_reserve(to, to->nchunks + to->nguests + 1))
		return worker_fail(w, -ENOMEM, "lane %td: no memory for a chunk from lane %td", to - w->lanes, l - w->lanes);
	to->nguests++;
	c->next_guest = p->guests;
	p->guests = (at * w->cfg.nlanes + (uint32_t)(home - w->lanes)) | RW_GUEST_BIT;
	return 0;
}
