/* Memory regions. */
#include "tcp.h"

#include <sched.h>

int tcp_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	struct rwb_device *dev = (struct rwb_device *)pd->dev;
	struct rwb_mr want = {.access = access, .addr = (uintptr_t)addr, .length = length};
	int slot;

	(void)fd;
	(void)fd_offset;
	pthread_mutex_lock(&dev->lock);
	slot = rwb_mr_add(pd, &want, out);
	pthread_mutex_unlock(&dev->lock);
	return slot < 0 ? slot : 0;
}

/* Waits for the end of every call that may have seen a key. Calls are short and never wait. */
static void quiesce(struct rwb_device *dev)
{
	struct rwb_cq *cq;

	LIST_FOREACH(cq, &dev->cqs, of_device) {
		_Atomic uint32_t *busy = &((struct tcp_cq *)cq)->busy;
		uint32_t seen = atomic_load(busy);

		while (seen & 1 && atomic_load(busy) == seen)
			sched_yield();
	}
}

int tcp_dereg_mr(rwf_pd *pd, uint32_t lkey)
{
	struct rwb_device *dev = (struct rwb_device *)pd->dev;
	int slot;

	pthread_mutex_lock(&dev->lock);
	slot = rwb_mr_remove(pd, lkey);
	if (slot >= 0)
		quiesce(dev);
	pthread_mutex_unlock(&dev->lock);
	return slot < 0 ? slot : 0;
}
