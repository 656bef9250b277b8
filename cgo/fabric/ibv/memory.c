/* Provider ibv: protection domains and registered memory. */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

int vb_alloc_pd(rwf_device *base, rwf_pd **out)
{
	struct vb_device *dev = (struct vb_device *)base;
	struct vb_pd *pd = calloc(1, sizeof *pd);

	if (!pd)
		return rwf_fail(ENOMEM, "allocate protection domain: no memory");
	pd->pd = vb_lib.alloc_pd(dev->ctx);
	if (!pd->pd) {
		int err = errno;

		free(pd);
		return rwf_fail(err, "allocate protection domain on %s: %s", dev->base.attr.name, strerror(err));
	}
	pd->base = (rwf_pd){.ops = base->ops, .dev = base};
	pthread_mutex_init(&pd->lock, NULL);
	*out = &pd->base;
	return 0;
}

int vb_dealloc_pd(rwf_pd *base)
{
	struct vb_pd *pd = (struct vb_pd *)base;
	struct vb_device *dev = (struct vb_device *)base->dev;
	int err = vb_lib.dealloc_pd(pd->pd);

	if (err)
		return rwf_fail(err, "deallocate protection domain on %s: %s", dev->base.attr.name, strerror(err));
	pthread_mutex_destroy(&pd->lock);
	free(pd);
	return 0;
}

static int registration_failed(const struct vb_device *dev, size_t length, int err)
{
	struct rlimit limit;

	if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		return rwf_fail(
			ENOMEM,
			"register memory on %s: %zu KiB more must be locked, and this process may lock %llu KiB in all: "
			"raise it with ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or memlock in /etc/security/limits.conf",
			dev->base.attr.name, (length + 1023) / 1024, (unsigned long long)limit.rlim_cur / 1024);
	return rwf_fail(err, "register %zu bytes on %s: %s", length, dev->base.attr.name, strerror(err));
}

/* Ignores the memfd behind the range, because the device reads pages. */
int vb_reg_mr(rwf_pd *base, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	struct vb_pd *pd = (struct vb_pd *)base;
	struct vb_device *dev = (struct vb_device *)base->dev;
	struct vb_mr *mr;
	int flags = 0;

	(void)fd, (void)fd_offset;
	if (length > dev->base.attr.max_mr_size)
		return rwf_fail(EINVAL, "register memory: %zu bytes, the device %s allows %llu in one region", length,
				dev->base.attr.name, (unsigned long long)dev->base.attr.max_mr_size);
	if (access & RWF_ACCESS_LOCAL_WRITE)
		flags = IBV_ACCESS_LOCAL_WRITE;
	if (access & RWF_ACCESS_REMOTE_WRITE)
		flags |= IBV_ACCESS_REMOTE_WRITE;
	mr = malloc(sizeof *mr);
	if (!mr)
		return rwf_fail(ENOMEM, "register memory: no memory");
	mr->mr = (vb_lib.reg_mr)(pd->pd, addr, length, flags);
	if (!mr->mr) {
		int err = errno;

		free(mr);
		return registration_failed(dev, length, err);
	}
	*out = (struct rwf_mr){(uintptr_t)addr, length, mr->mr->lkey, mr->mr->rkey};
	pthread_mutex_lock(&pd->lock);
	LIST_INSERT_HEAD(&pd->mrs, mr, all);
	pthread_mutex_unlock(&pd->lock);
	return 0;
}

static struct vb_mr *unlink_mr(struct vb_pd *pd, uint32_t lkey)
{
	struct vb_mr *mr;

	pthread_mutex_lock(&pd->lock);
	LIST_FOREACH(mr, &pd->mrs, all)
		if (mr->mr->lkey == lkey)
			break;
	if (mr)
		LIST_REMOVE(mr, all);
	pthread_mutex_unlock(&pd->lock);
	return mr;
}

int vb_dereg_mr(rwf_pd *base, uint32_t lkey)
{
	struct vb_pd *pd = (struct vb_pd *)base;
	struct vb_device *dev = (struct vb_device *)base->dev;
	struct vb_mr *mr = unlink_mr(pd, lkey);
	int err;

	if (!mr)
		return rwf_fail(EINVAL, "deregister memory: no region of this protection domain has lkey 0x%x", lkey);
	err = vb_lib.dereg_mr(mr->mr);
	free(mr);
	return err ? rwf_fail(err, "deregister memory on %s: %s", dev->base.attr.name, strerror(err)) : 0;
}

#endif
