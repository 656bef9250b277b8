/* Protection domains and memory regions. */
#include "tcp.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

int tcp_alloc_pd(rwf_device *head, rwf_pd **out)
{
	struct tcp_device *dev = (struct tcp_device *)head;
	struct tcp_pd *pd = calloc(1, sizeof *pd);

	if (!pd)
		return rwf_fail(ENOMEM, "allocate protection domain: out of memory");
	pd->head = (rwf_pd){head->ops, head};
	atomic_fetch_add(&dev->pd_count, 1);
	*out = &pd->head;
	return 0;
}

int tcp_dealloc_pd(rwf_pd *head)
{
	struct tcp_device *dev = (struct tcp_device *)head->dev;
	struct tcp_pd *pd = (struct tcp_pd *)head;

	if (atomic_load(&pd->users))
		return rwf_fail(EBUSY, "deallocate protection domain: queue pairs or memory regions of it are open");
	atomic_fetch_sub(&dev->pd_count, 1);
	free(pd);
	return 0;
}

/* Takes a free region. Keys of different devices differ where they can: a key gone astray should open nothing. */
static struct tcp_mr *free_mr(struct tcp_device *dev)
{
	struct tcp_mr *mr = SLIST_FIRST(&dev->free_mrs);

	if (mr) {
		SLIST_REMOVE_HEAD(&dev->free_mrs, free);
	} else if (dev->mrs_used < TCP_MAX_MR) {
		mr = &dev->mrs[dev->mrs_used++];
		mr->generation = (uint16_t)(dev->address.port * 40503u);
	}
	return mr;
}

int tcp_reg_mr(rwf_pd *head, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	struct tcp_device *dev = (struct tcp_device *)head->dev;
	struct tcp_pd *pd = (struct tcp_pd *)head;
	struct tcp_mr *mr;
	uint32_t key;

	(void)fd;
	(void)fd_offset;
	pthread_mutex_lock(&dev->mr_lock);
	mr = free_mr(dev);
	if (!mr) {
		pthread_mutex_unlock(&dev->mr_lock);
		return rwf_fail(ENOMEM, "register memory: %d regions are registered, the limit", TCP_MAX_MR);
	}
	if (++mr->generation == 0)
		mr->generation = 1;
	key = (uint32_t)mr->generation << 16 | (uint32_t)(mr - dev->mrs);
	mr->pd = pd;
	mr->addr = (uintptr_t)addr;
	mr->length = length;
	mr->access = access;
	atomic_store_explicit(&mr->key, key, memory_order_release);
	pthread_mutex_unlock(&dev->mr_lock);
	atomic_fetch_add(&pd->users, 1);
	*out = (struct rwf_mr){.addr = (uintptr_t)addr, .length = length, .lkey = key, .rkey = key};
	return 0;
}

/* Waits until every call that may have seen a key is over. Calls are short and never wait. */
static void quiesce(struct tcp_device *dev)
{
	struct tcp_cq *cq;

	LIST_FOREACH(cq, &dev->cqs, all)
	{
		uint32_t seen = atomic_load(&cq->busy);

		while (seen & 1 && atomic_load(&cq->busy) == seen)
			sched_yield();
	}
}

int tcp_dereg_mr(rwf_pd *head, uint32_t lkey)
{
	struct tcp_device *dev = (struct tcp_device *)head->dev;
	struct tcp_pd *pd = (struct tcp_pd *)head;
	struct tcp_mr *mr = &dev->mrs[lkey & (TCP_MAX_MR - 1)];

	pthread_mutex_lock(&dev->mr_lock);
	if (lkey == 0 || atomic_load(&mr->key) != lkey || mr->pd != pd) {
		pthread_mutex_unlock(&dev->mr_lock);
		return rwf_fail(EINVAL, "deregister memory: 0x%x is not a key of this protection domain", lkey);
	}
	atomic_store(&mr->key, 0);
	quiesce(dev);
	SLIST_INSERT_HEAD(&dev->free_mrs, mr, free);
	pthread_mutex_unlock(&dev->mr_lock);
	atomic_fetch_sub(&pd->users, 1);
	return 0;
}

/* Reports whether key lets this queue pair use [addr, addr+length). Only inside a call that busy counts. */
bool tcp_mr_allows(struct tcp_qp *qp, uint32_t key, uint64_t addr, uint64_t length, int access)
{
	struct tcp_mr *mr = &qp->dev->mrs[key & (TCP_MAX_MR - 1)];

	return key != 0 && atomic_load_explicit(&mr->key, memory_order_acquire) == key && &mr->pd->head == qp->head.pd &&
	       (mr->access & access) == access && (!access || rwb_for_peer(&qp->head, mr->access)) && addr >= mr->addr &&
	       length <= mr->length && addr - mr->addr <= mr->length - length;
}
