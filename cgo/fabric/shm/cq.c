/* Provider shm: completion queues, the files that they watch, and the ends of queue pairs. Owner thread only, or it says so. */
#include "shm.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int shm_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out)
{
	int rc = rwb_cq_make(dev, cqe, sizeof(struct shm_cq), out);

	if (!rc)
		TAILQ_INIT(&((struct shm_cq *)*out)->qps);
	return rc;
}

/* Makes the queue's sleeper notice the queue pair's socket and its peer's death. Any thread. */
int shm_cq_watch(struct shm_qp *q)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uintptr_t)q};

	if (epoll_ctl(q->cq->base.epoll_fd, EPOLL_CTL_ADD, q->sock, &ev))
		return -errno;
	ev.data.u64 |= SHM_PEER_PROCESS;
	if (q->pidfd >= 0 && epoll_ctl(q->cq->base.epoll_fd, EPOLL_CTL_ADD, q->pidfd, &ev))
		return -errno;
	return 0;
}

void shm_cq_unwatch(struct shm_qp *q)
{
	if (q->sock >= 0)
		epoll_ctl(q->cq->base.epoll_fd, EPOLL_CTL_DEL, q->sock, NULL);
	if (q->pidfd >= 0)
		epoll_ctl(q->cq->base.epoll_fd, EPOLL_CTL_DEL, q->pidfd, NULL);
}

/*
 * Ends the queue pair. Delivers the messages that had arrived and flushes the rest, the first waiting send with status. What does
 * not fit the completion queue waits for a poll. The peer sees the end of the socket. The state may be ERR already, because the
 * accepting thread fails passive queue pairs without touching the owner's fields.
 */
void shm_enter_error(struct shm_qp *q, enum rwf_wc_status status)
{
	int was = atomic_exchange(&q->base.head.state, RWF_QPS_ERR);

	if (!q->ended) {
		q->ended = true;
		if (was == RWF_QPS_RTS) {
			(void)shm_receive(q); /* a message that the peer may not send is flushed with the rest */
			shm_cq_unwatch(q);
			shutdown(q->sock, SHUT_RDWR);
		}
		rwb_set_error(&q->base, status);
		if (was != RWF_QPS_ERR)
			rwb_raise(&q->base, RWF_EVENT_QP_FATAL);
	}
	rwb_flush(&q->cq->base, &q->base);
}

/* Fails every queue pair of a queue that overran. */
void shm_cq_check(struct shm_cq *cq)
{
	struct shm_qp *q;

	if (__builtin_expect(!cq->base.overrun, 1))
		return;
	TAILQ_FOREACH(q, &cq->qps, of_cq) {
		shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
		if (!cq->overrun_told)
			rwb_raise(&q->base, RWF_EVENT_CQ_ERR);
		cq->overrun_told = true;
	}
}
