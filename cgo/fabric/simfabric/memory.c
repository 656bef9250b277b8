/* Memory regions: their table, and the check of every access. */
#include "world.h"

#include <stdlib.h>

/*
 * A key holds a generation, a slot and a side, so that a key that was deregistered, or is used on the wrong side, names nothing.
 * The slot is 12 bits (SIM_MAX_MR), the side is the last.
 */
static uint32_t slot_of(uint32_t key)
{
	return key >> 1 & (SIM_MAX_MR - 1);
}

static const struct sim_mr *find(const struct sim_pd *pd, uint32_t key, uint64_t addr, uint32_t len)
{
	const struct sim_device *dev = (const struct sim_device *)pd->base.dev;
	uint32_t slot = slot_of(key);
	const struct sim_mr *mr = slot < dev->mr_cap ? &dev->mrs[slot] : NULL;

	/* The comparison is unsigned, so an address before the region is far behind it. */
	if (!mr || mr->pd != pd || len > mr->length || addr - mr->addr > mr->length - len)
		return NULL;
	return mr;
}

const struct sim_mr *sim_local_mr(const struct sim_pd *pd, uint32_t lkey, uint64_t addr, uint32_t len)
{
	const struct sim_mr *mr = find(pd, lkey, addr, len);

	return mr && mr->lkey == lkey ? mr : NULL;
}

const struct sim_mr *sim_remote_mr(const struct sim_qp *qp, uint32_t rkey, uint64_t addr, uint32_t len)
{
	const struct sim_mr *mr = find(qp->pd, rkey, addr, len);

	return mr && mr->rkey == rkey && (mr->access & RWF_ACCESS_REMOTE_WRITE) && rwb_for_peer(&qp->base, mr->access) ? mr : NULL;
}

static struct sim_mr *free_slot(struct sim_device *dev)
{
	uint32_t slot = 0, cap = dev->mr_cap ? dev->mr_cap * 2 : 16;
	struct sim_mr *mrs;

	while (slot < dev->mr_cap && dev->mrs[slot].pd)
		slot++;
	if (slot < dev->mr_cap)
		return &dev->mrs[slot];
	mrs = slot < SIM_MAX_MR ? realloc(dev->mrs, cap * sizeof *mrs) : NULL;
	if (!mrs)
		return NULL;
	for (uint32_t i = dev->mr_cap; i < cap; i++)
		mrs[i] = (struct sim_mr){0};
	dev->mrs = mrs;
	dev->mr_cap = cap;
	return &mrs[slot];
}

struct sim_mr *sim_mr_add(struct sim_pd *pd, uint64_t addr, uint64_t length, int access)
{
	struct sim_device *dev = (struct sim_device *)pd->base.dev;
	struct sim_mr *mr = free_slot(dev);
	uint32_t key;

	if (!mr)
		return NULL;
	key = ++dev->world->last_key << 13 | (uint32_t)(mr - dev->mrs) << 1;
	*mr = (struct sim_mr){addr, length, pd, key, key | 1, access};
	pd->users++;
	return mr;
}

bool sim_mr_remove(struct sim_pd *pd, uint32_t lkey)
{
	struct sim_device *dev = (struct sim_device *)pd->base.dev;
	uint32_t slot = slot_of(lkey);

	if (slot >= dev->mr_cap || dev->mrs[slot].pd != pd || dev->mrs[slot].lkey != lkey)
		return false;
	dev->mrs[slot].pd = NULL;
	pd->users--;
	return true;
}
