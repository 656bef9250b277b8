/* Protection domains, and registering memory in them. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>

int sim_alloc_pd(rwf_device *base, rwf_pd **out)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct sim_pd *pd = calloc(1, sizeof *pd);

	if (!pd)
		return rwf_fail(ENOMEM, "allocate protection domain: no memory");
	pd->base = (rwf_pd){base->ops, base};
	sim_lock(dev->world);
	dev->pds++;
	sim_unlock(dev->world);
	*out = &pd->base;
	return 0;
}

int sim_dealloc_pd(rwf_pd *base)
{
	struct sim_pd *pd = (struct sim_pd *)base;
	struct sim_device *dev = (struct sim_device *)base->dev;
	uint32_t users;

	sim_lock(dev->world);
	users = pd->users;
	dev->pds -= users == 0;
	sim_unlock(dev->world);
	if (users)
		return rwf_fail(EBUSY, "deallocate protection domain: %u queue pairs and memory regions are in it", users);
	free(pd);
	return 0;
}

int sim_reg_mr(rwf_pd *base, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	struct sim_device *dev = (struct sim_device *)base->dev;
	struct sim_mr *mr;
	int rc = 0;

	(void)fd, (void)fd_offset; /* one process: every address is everyone's */
	sim_lock(dev->world);
	mr = sim_mr_add((struct sim_pd *)base, (uintptr_t)addr, length, access);
	if (mr)
		*out = (struct rwf_mr){mr->addr, length, mr->lkey, mr->rkey};
	else
		rc = rwf_fail(ENOMEM, "register memory: device %s has no room for more than its %u regions, or no memory for them",
			      dev->name, dev->mr_cap);
	sim_unlock(dev->world);
	return rc;
}

int sim_dereg_mr(rwf_pd *base, uint32_t lkey)
{
	struct sim_device *dev = (struct sim_device *)base->dev;
	bool removed;

	sim_lock(dev->world);
	removed = sim_mr_remove((struct sim_pd *)base, lkey);
	sim_unlock(dev->world);
	return removed ? 0 : rwf_fail(EINVAL, "deregister memory: no region of this protection domain has lkey 0x%x", lkey);
}
