#include "soft.h"

#include "wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

int rwb_device_make(struct rwb_device *dev, const struct rwf_ops *ops, const struct rwf_device_attr *attr)
{
	dev->head = (rwf_device){.ops = ops, .attr = *attr};
	pthread_mutex_init(&dev->lock, NULL);
	dev->mrs = calloc(attr->max_mr, sizeof *dev->mrs);
	dev->event_fd = -1;
	if (getrandom(&dev->next_qp_num, sizeof dev->next_qp_num, 0) == sizeof dev->next_qp_num)
		dev->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return dev->mrs && dev->event_fd >= 0 ? 0 : rwf_fail(errno, "open provider %s: %s", ops->name, strerror(errno));
}

void rwb_device_free(struct rwb_device *dev)
{
	if (dev->event_fd >= 0)
		close(dev->event_fd);
	pthread_mutex_destroy(&dev->lock);
	free(dev->mrs);
	free(dev);
}

int rwb_alloc_pd(rwf_device *dev, rwf_pd **out)
{
	rwf_pd *pd = calloc(1, sizeof *pd);

	if (!pd)
		return rwf_fail(ENOMEM, "allocate protection domain: out of memory");
	*pd = (rwf_pd){.ops = dev->ops, .dev = dev};
	*out = pd;
	return 0;
}

int rwb_dealloc_pd(rwf_pd *pd)
{
	free(pd);
	return 0;
}

int rwb_mr_add(rwf_pd *pd, const struct rwb_mr *want, struct rwf_mr *out)
{
	struct rwb_device *dev = (struct rwb_device *)pd->dev;
	uint32_t slot_mask = dev->head.attr.max_mr - 1, key;

	for (uint32_t i = 0; i < dev->head.attr.max_mr; i++) {
		/* Slots are taken in turn, so that a freed one stays free for long. */
		uint32_t slot = (dev->next_mr + i) & slot_mask;
		struct rwb_mr *mr = &dev->mrs[slot];

		if (mr->key)
			continue;
		do {
			if (getrandom(&key, sizeof key, 0) != sizeof key)
				return rwf_fail(EIO, "register memory: no random bytes");
			key = (key & ~slot_mask) | slot;
		} while (key <= slot_mask || key == mr->last_key);
		dev->next_mr = slot + 1;
		mr->last_key = key;
		mr->access = want->access;
		mr->fd = want->fd;
		mr->addr = want->addr;
		mr->length = want->length;
		mr->offset = want->offset;
		mr->pd = pd;
		atomic_store_explicit(&mr->key, key, memory_order_release);
		*out = (struct rwf_mr){.addr = want->addr, .length = want->length, .lkey = key, .rkey = key};
		return (int)slot;
	}
	return rwf_fail(ENOMEM, "register memory: the device has %u regions, its most", dev->head.attr.max_mr);
}

int rwb_mr_remove(rwf_pd *pd, uint32_t lkey)
{
	struct rwb_device *dev = (struct rwb_device *)pd->dev;
	struct rwb_mr *mr = &dev->mrs[lkey & (dev->head.attr.max_mr - 1)];

	if (!lkey || mr->key != lkey || mr->pd != pd)
		return rwf_fail(EINVAL, "deregister memory: 0x%x is not a key of this protection domain", lkey);
	atomic_store(&mr->key, 0);
	return (int)(mr - dev->mrs);
}

static void release(struct rwb_cq *cq)
{
	if (cq->epoll_fd >= 0)
		close(cq->epoll_fd);
	if (cq->head.wake_fd >= 0)
		close(cq->head.wake_fd);
	rwb_ring_free(&cq->ring);
	free(cq);
}

int rwb_cq_make(rwf_device *head, uint32_t cqe, size_t size, rwf_cq **out)
{
	struct rwb_device *dev = (struct rwb_device *)head;
	struct epoll_event wake = {.events = EPOLLIN};
	struct rwb_cq *cq = calloc(1, size);

	if (!cq)
		return rwf_fail(ENOMEM, "create completion queue: out of memory");
	cq->head = (rwf_cq){.ops = head->ops, .dev = head};
	cq->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	cq->head.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (rwb_ring_make(&cq->ring, cqe) || cq->epoll_fd < 0 || cq->head.wake_fd < 0 ||
	    epoll_ctl(cq->epoll_fd, EPOLL_CTL_ADD, cq->head.wake_fd, &wake)) {
		int err = errno;

		release(cq);
		return rwf_fail(err, "create completion queue: %s", strerror(err));
	}
	pthread_mutex_lock(&dev->lock);
	LIST_INSERT_HEAD(&dev->cqs, cq, of_device);
	pthread_mutex_unlock(&dev->lock);
	*out = &cq->head;
	return 0;
}

int rwb_destroy_cq(rwf_cq *head)
{
	struct rwb_device *dev = (struct rwb_device *)head->dev;
	struct rwb_cq *cq = (struct rwb_cq *)head;

	pthread_mutex_lock(&dev->lock);
	LIST_REMOVE(cq, of_device);
	pthread_mutex_unlock(&dev->lock);
	release(cq);
	return 0;
}

int rwb_cq_take(struct rwb_cq *cq, struct rwf_wc *wc, int n)
{
	const struct rwb_completion *c;
	int got = 0;

	if (cq->overrun)
		return rwf_fail(EOVERFLOW,
				"completion queue overran its %u entries: size it for every signaled send and posted receive",
				cq->ring.limit);
	while (got < n && (c = rwb_ring_pop(&cq->ring))) {
		struct rwb_qp *qp = (struct rwb_qp *)c->qp;

		wc[got++] = c->wc;
		if (c->wc.opcode == RWF_WC_SEND)
			qp->sends.freed = c->done;
		else
			qp->recv_freed = c->done;
	}
	return got;
}

bool rwb_flush(struct rwb_cq *cq, struct rwb_qp *qp)
{
	while (rwb_ring_length(&cq->ring) < cq->ring.limit) {
		if (qp->acked != qp->sends.posted) {
			rwb_complete_send(cq, qp, rwb_send(&qp->sends, qp->acked), qp->error);
			qp->error = RWF_WC_WR_FLUSH_ERR;
		} else if (qp->received != qp->recv_posted) {
			rwb_complete_receive(cq, qp, (struct rwf_wc){.status = RWF_WC_WR_FLUSH_ERR});
		} else {
			return false;
		}
	}
	return qp->acked != qp->sends.posted || qp->received != qp->recv_posted;
}

int rwb_qp_make(struct rwb_qp *qp, const struct rwf_qp_init *init, uint32_t inline_room)
{
	uint32_t receives = rwb_pow2(init->max_recv_wr);

	qp->recv_limit = init->max_recv_wr;
	qp->recv_mask = receives - 1;
	qp->wr_ids = calloc(receives, sizeof *qp->wr_ids);
	if (rwb_sends_make(&qp->sends, init->max_send_wr, inline_room) || !qp->wr_ids)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	return 0;
}

void rwb_qp_free(struct rwb_qp *qp)
{
	rwb_sends_free(&qp->sends);
	free(qp->wr_ids);
	free(qp);
}

int rwb_add_receives(struct rwb_qp *qp, uint64_t wr_id, int n)
{
	uint64_t posted = atomic_load_explicit(&qp->recv_posted, memory_order_relaxed), taken = posted - qp->recv_freed;

	if (n < 0 || (uint64_t)n > qp->recv_limit - taken)
		return rwf_fail(ENOMEM, "post receive: %d more, but %u of the receive queue's %u entries are taken", n,
				(uint32_t)taken, qp->recv_limit);
	for (int i = 0; i < n; i++)
		qp->wr_ids[posted++ & qp->recv_mask] = wr_id;
	atomic_store(&qp->recv_posted, posted);
	return 0;
}

void rwb_qp_enter(struct rwb_qp *qp, rwf_pd *pd)
{
	struct rwb_device *dev = (struct rwb_device *)pd->dev;

	qp->head.ops = pd->ops;
	qp->head.pd = pd;
	qp->head.state = RWF_QPS_INIT;
	pthread_mutex_lock(&dev->lock);
	do
		qp->head.num = dev->next_qp_num++ & 0xffffff;
	while (qp->head.num == 0);
	LIST_INSERT_HEAD(&dev->qps, qp, of_device);
	pthread_mutex_unlock(&dev->lock);
}

void rwb_qp_leave(struct rwb_qp *qp, struct rwb_cq *cq)
{
	struct rwb_device *dev = (struct rwb_device *)qp->head.pd->dev;

	pthread_mutex_lock(&dev->lock);
	LIST_REMOVE(qp, of_device);
	pthread_mutex_unlock(&dev->lock);
	rwb_ring_drop(&cq->ring, &qp->head);
}

int rwb_sending_state(struct rwb_qp *qp)
{
	struct rwb_device *dev = (struct rwb_device *)qp->head.pd->dev;

	if (qp->head.state == RWF_QPS_RTR) {
		pthread_mutex_lock(&dev->lock);
		pthread_mutex_unlock(&dev->lock);
	}
	return qp->head.state;
}

void rwb_raise(struct rwb_qp *qp, enum rwf_async_type type)
{
	atomic_fetch_or(&qp->events, 1u << type);
	rwb_notify(((struct rwb_device *)qp->head.pd->dev)->event_fd);
}

bool rwb_take_event(struct rwb_device *dev, struct rwf_async_event *out)
{
	uint32_t bits = 0;
	struct rwb_qp *qp;

	pthread_mutex_lock(&dev->lock);
	LIST_FOREACH(qp, &dev->qps, of_device) {
		bits = atomic_load(&qp->events);
		if (!bits)
			continue;
		out->type = (uint32_t)__builtin_ctz(bits);
		out->qp_num = qp->head.num;
		atomic_fetch_and(&qp->events, ~(1u << out->type));
		break;
	}
	pthread_mutex_unlock(&dev->lock);
	return bits != 0;
}
