/* Memory regions: registering them, and the check every access passes. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>

/*
 * A key is a generation, a slot and a side, so that one that was given back, or is used on the wrong side, names nothing.
 * Slots are 12 bits (SIM_MAX_MR), the side is the last.
 */
static uint32_t slot_of(uint32_t key)
{
	return key >> 1 & (SIM_MAX_MR - 1);
}

int sim_reg_mr(rwf_pd *base, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	struct sim_pd *pd = (struct sim_pd *)base;
	struct sim_device *dev = (struct sim_device *)base->dev;
	struct rwf_sim *w = dev->world;
	uint32_t slot = 0;
	struct sim_mr *mr;
	int rc = 0;

	(void)fd, (void)fd_offset; /* one process: every address is everyone's */
	if (access & ~(RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE))
		return rwf_fail(EINVAL, "register memory: access 0x%x is not made of local write and remote write", access);
	if ((uintptr_t)addr + length < (uintptr_t)addr)
		return rwf_fail(EINVAL, "register memory: %zu bytes at %p pass the end of the address space", length, addr);
	sim_lock(w);
	while (slot < dev->mr_cap && dev->mrs[slot].pd)
		slot++;
	if (slot == SIM_MAX_MR) {
		rc = rwf_fail(ENOMEM, "register memory: device %s has all its %d regions in use", dev->name, SIM_MAX_MR);
	} else if (slot == dev->mr_cap) {
		uint32_t cap = dev->mr_cap ? dev->mr_cap * 2 : 16;

		mr = realloc(dev->mrs, cap * sizeof *mr);
		if (mr) {
			for (uint32_t i = dev->mr_cap; i < cap; i++)
				mr[i] = (struct sim_mr){0};
			dev->mrs = mr;
			dev->mr_cap = cap;
		} else {
			rc = rwf_fail(ENOMEM, "register memory: no memory for %u regions", cap);
		}
	}
	if (rc == 0) {
		uint32_t key = ++w->last_key << 13 | slot << 1;

		mr = &dev->mrs[slot];
		*mr = (struct sim_mr){(uintptr_t)addr, length, pd, key, key | 1, access};
		pd->users++;
		*out = (struct rwf_mr){mr->addr, length, mr->lkey, mr->rkey};
	}
	sim_unlock(w);
	return rc;
}

int sim_dereg_mr(rwf_pd *base, uint32_t lkey)
{
	struct sim_pd *pd = (struct sim_pd *)base;
	struct sim_device *dev = (struct sim_device *)base->dev;
	uint32_t slot = slot_of(lkey);
	int rc = 0;

	sim_lock(dev->world);
	if (slot < dev->mr_cap && dev->mrs[slot].pd == pd && dev->mrs[slot].lkey == lkey) {
		dev->mrs[slot].pd = NULL;
		pd->users--;
	} else {
		rc = rwf_fail(EINVAL, "deregister memory: no region of this protection domain has lkey 0x%x", lkey);
	}
	sim_unlock(dev->world);
	return rc;
}

static const struct sim_mr *find(const struct sim_pd *pd, uint32_t key, uint64_t addr, uint32_t len)
{
	const struct sim_device *dev = (const struct sim_device *)pd->base.dev;
	uint32_t slot = slot_of(key);
	const struct sim_mr *mr = slot < dev->mr_cap ? &dev->mrs[slot] : NULL;

	/* Unsigned: an address before the region is far behind it. */
	if (!mr || mr->pd != pd || len > mr->length || addr - mr->addr > mr->length - len)
		return NULL;
	return mr;
}

const struct sim_mr *sim_local_mr(const struct sim_pd *pd, uint32_t lkey, uint64_t addr, uint32_t len)
{
	const struct sim_mr *mr = find(pd, lkey, addr, len);

	return mr && mr->lkey == lkey ? mr : NULL;
}

const struct sim_mr *sim_remote_mr(const struct sim_pd *pd, uint32_t rkey, uint64_t addr, uint32_t len)
{
	const struct sim_mr *mr = find(pd, rkey, addr, len);

	return mr && mr->rkey == rkey && (mr->access & RWF_ACCESS_REMOTE_WRITE) ? mr : NULL;
}
