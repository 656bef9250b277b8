/* Completion queues. */
#include "tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int tcp_create_cq(rwf_device *head, uint32_t cqe, rwf_cq **out)
{
	struct tcp_device *dev = (struct tcp_device *)head;
	struct epoll_event ev = {.events = EPOLLIN};
	struct tcp_cq *cq = calloc(1, sizeof *cq);
	int err;

	if (!cq)
		return rwf_fail(ENOMEM, "create completion queue: out of memory");
	cq->head = (rwf_cq){head->ops, head};
	err = rwb_ring_make(&cq->ring, cqe);
	cq->armed = 1;
	LIST_INIT(&cq->links);
	TAILQ_INIT(&cq->ready);
	cq->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	cq->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_lock(&dev->mr_lock);
	if (!err && cq->epoll_fd >= 0 && cq->wake_fd >= 0 && dev->cq_count < TCP_MAX_CQ &&
	    epoll_ctl(cq->epoll_fd, EPOLL_CTL_ADD, cq->wake_fd, &ev) == 0) {
		LIST_INSERT_HEAD(&dev->cqs, cq, all);
		dev->cq_count++;
		pthread_mutex_unlock(&dev->mr_lock);
		*out = &cq->head;
		return 0;
	}
	err = err ? ENOMEM : dev->cq_count >= TCP_MAX_CQ ? ENOSPC : errno;
	pthread_mutex_unlock(&dev->mr_lock);
	if (cq->epoll_fd >= 0)
		close(cq->epoll_fd);
	if (cq->wake_fd >= 0)
		close(cq->wake_fd);
	rwb_ring_free(&cq->ring);
	free(cq);
	return rwf_fail(err, "create completion queue: %s", strerror(err));
}

int tcp_destroy_cq(rwf_cq *head)
{
	struct tcp_device *dev = (struct tcp_device *)head->dev;
	struct tcp_cq *cq = (struct tcp_cq *)head;

	if (!LIST_EMPTY(&cq->links))
		return rwf_fail(EBUSY, "destroy completion queue: a queue pair uses it");
	pthread_mutex_lock(&dev->mr_lock);
	LIST_REMOVE(cq, all);
	dev->cq_count--;
	pthread_mutex_unlock(&dev->mr_lock);
	close(cq->epoll_fd);
	close(cq->wake_fd);
	rwb_ring_free(&cq->ring);
	free(cq);
	return 0;
}

void tcp_cq_attach(struct tcp_cq *cq, struct tcp_link *link)
{
	link->cq = cq;
	LIST_INSERT_HEAD(&cq->links, link, all);
}

/* Drops the queue pair's completions too. */
void tcp_cq_detach(struct tcp_link *link)
{
	struct tcp_cq *cq = link->cq;

	LIST_REMOVE(link, all);
	if (link->queued)
		TAILQ_REMOVE(&cq->ready, link, ready);
	rwb_ring_drop(&cq->ring, &link->qp->head);
}

/* Edge-triggered: a queue pair remembers by itself that there is more to read, or that the socket is full. */
int tcp_cq_watch(struct tcp_link *link, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = link};

	return epoll_ctl(link->cq->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

int tcp_wake_cq(rwf_cq *head)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;

	atomic_store(&cq->woken, 1);
	rwb_notify(cq->wake_fd);
	return 0;
}

/* Makes the owner look at the state of its queue pairs. Any thread. */
void tcp_cq_attention(struct tcp_cq *cq)
{
	atomic_store(&cq->attention, 1);
	rwb_notify(cq->wake_fd);
}

bool tcp_cq_full(const struct tcp_cq *cq)
{
	return rwb_ring_length(&cq->ring) == cq->ring.limit;
}

void tcp_cq_push(struct tcp_cq *cq, struct tcp_qp *qp, const struct rwf_wc *wc, uint64_t done)
{
	struct rwb_completion *c = cq->overrun ? NULL : rwb_ring_push(&cq->ring);
	struct tcp_link *link;

	if (cq->overrun)
		return;
	if (!c) {
		cq->overrun = true;
		tcp_raise(qp, RWF_EVENT_CQ_ERR);
		LIST_FOREACH(link, &cq->links, all)
		tcp_qp_error(link->qp, RWF_WC_WR_FLUSH_ERR);
		return;
	}
	cq->errors |= wc->status != RWF_WC_SUCCESS;
	*c = (struct rwb_completion){.wc = *wc, .qp = &qp->head, .done = done};
}
