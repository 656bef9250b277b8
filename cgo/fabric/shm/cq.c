/* Provider shm: completion queues and the files they watch. Owner thread only unless said otherwise. */
#include "shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int shm_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out)
{
	struct shm_device *d = shm_dev(dev);
	struct shm_cq *cq = calloc(1, sizeof *cq);
	struct epoll_event ev = {.events = EPOLLIN};

	if (!cq)
		return rwf_fail(ENOMEM, "create completion queue: out of memory");
	cq->base = (struct rwf_cq){dev->ops, dev};
	cq->epfd = epoll_create1(EPOLL_CLOEXEC);
	cq->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (rwb_ring_make(&cq->ring, cqe) || cq->epfd < 0 || cq->wake_fd < 0 ||
	    epoll_ctl(cq->epfd, EPOLL_CTL_ADD, cq->wake_fd, &ev)) {
		int e = errno;

		if (cq->epfd >= 0)
			close(cq->epfd);
		if (cq->wake_fd >= 0)
			close(cq->wake_fd);
		rwb_ring_free(&cq->ring);
		free(cq);
		return rwf_fail(e, "create completion queue: %s", strerror(e));
	}
	pthread_mutex_lock(&d->lock);
	cq->next = d->cqs;
	d->cqs = cq;
	pthread_mutex_unlock(&d->lock);
	*out = &cq->base;
	return 0;
}

int shm_destroy_cq(rwf_cq *base)
{
	struct shm_cq *cq = (struct shm_cq *)base;
	struct shm_device *d = shm_dev(base->dev);

	if (cq->nqps)
		return rwf_fail(EBUSY, "destroy completion queue: %d queue pairs use it", cq->nqps);
	pthread_mutex_lock(&d->lock);
	for (struct shm_cq **p = &d->cqs; *p; p = &(*p)->next)
		if (*p == cq) {
			*p = cq->next;
			break;
		}
	pthread_mutex_unlock(&d->lock);
	close(cq->epfd);
	close(cq->wake_fd);
	free(cq->qps);
	rwb_ring_free(&cq->ring);
	free(cq);
	return 0;
}

int shm_cq_attach(struct shm_cq *cq, struct shm_qp *q)
{
	if (cq->nqps == cq->cap) {
		int cap = cq->cap ? 2 * cq->cap : 8;
		struct shm_qp **qps = realloc(cq->qps, (size_t)cap * sizeof(*qps));

		if (!qps)
			return rwf_fail(ENOMEM, "create queue pair: out of memory");
		cq->qps = qps;
		cq->cap = cap;
	}
	cq->qps[cq->nqps++] = q;
	return 0;
}

/* Forgets the queue pair and its completions. */
void shm_cq_detach(struct shm_cq *cq, struct shm_qp *q)
{
	shm_cq_unwatch(cq, q);
	for (int i = 0; i < cq->nqps; i++)
		if (cq->qps[i] == q)
			cq->qps[i--] = cq->qps[--cq->nqps];
	if (cq->start >= cq->nqps)
		cq->start = 0;
	rwb_ring_drop(&cq->ring, &q->base);
}

/* Makes the queue's sleeper notice the queue pair's socket and its peer's death. Any thread. */
int shm_cq_watch(struct shm_cq *cq, struct shm_qp *q)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uintptr_t)q};

	if (epoll_ctl(cq->epfd, EPOLL_CTL_ADD, q->sock, &ev))
		return -errno;
	ev.data.u64 |= SHM_PEER_PROCESS;
	if (q->pidfd >= 0 && epoll_ctl(cq->epfd, EPOLL_CTL_ADD, q->pidfd, &ev))
		return -errno;
	return 0;
}

void shm_cq_unwatch(struct shm_cq *cq, struct shm_qp *q)
{
	if (q->sock >= 0)
		epoll_ctl(cq->epfd, EPOLL_CTL_DEL, q->sock, NULL);
	if (q->pidfd >= 0)
		epoll_ctl(cq->epfd, EPOLL_CTL_DEL, q->pidfd, NULL);
}

/* Any thread. */
int shm_wake_cq(rwf_cq *base)
{
	rwb_notify(((struct shm_cq *)base)->wake_fd);
	return 0;
}
