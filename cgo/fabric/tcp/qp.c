/* Queue pairs: life, connection, posting, failure. */
#include "tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FRAME = 1 << 20 };

static uint32_t round_up(uint32_t n)
{
	uint32_t size = 1;

	while (size < n)
		size *= 2;
	return size;
}

/* Finds a place in the table; the number says which, and tells its tenants apart (24 bits, as on an RDMA wire). */
static int enroll(struct tcp_device *dev, struct tcp_qp *qp)
{
	pthread_mutex_lock(&dev->lock);
	for (uint32_t i = 0; i < TCP_MAX_QP; i++) {
		uint32_t index = (dev->qp_next + i) % TCP_MAX_QP;

		if (dev->qps[index])
			continue;
		dev->qp_next = index + 1;
		do
			qp->head.num = (++dev->qp_generation * TCP_MAX_QP + index) & 0xffffff;
		while (qp->head.num == 0);
		dev->qps[index] = qp;
		pthread_mutex_unlock(&dev->lock);
		return 0;
	}
	pthread_mutex_unlock(&dev->lock);
	return rwf_fail(ENOMEM, "create queue pair: %d exist, the limit", TCP_MAX_QP);
}

static int release(struct tcp_qp *qp, int rc)
{
	free(qp->sq);
	free(qp->rq);
	free(qp->inline_data);
	free(qp);
	return rc;
}

int tcp_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct tcp_device *dev = (struct tcp_device *)pd->dev;
	struct tcp_qp *qp;
	uint32_t sq_size = round_up(init->max_send_wr), rq_size = round_up(init->max_recv_wr);
	int rc;

	if (!init->send_cq || !init->recv_cq || init->send_cq->dev != pd->dev || init->recv_cq->dev != pd->dev)
		return rwf_fail(EINVAL, "create queue pair: it needs two completion queues of its device");
	if (init->max_inline > TCP_MAX_INLINE)
		return rwf_fail(EINVAL, "create queue pair: %u bytes inline, provider tcp allows %d", init->max_inline, TCP_MAX_INLINE);
	if (init->flags & ~RWF_QP_BY_REFERENCE) /* which is a wish: payloads lie where the sender aimed */
		return rwf_fail(EINVAL, "create queue pair: unknown flags 0x%x", init->flags);
	qp = calloc(1, sizeof *qp);
	if (!qp)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	qp->sq = calloc(sq_size, sizeof *qp->sq);
	qp->rq = calloc(rq_size, sizeof *qp->rq);
	qp->inline_data = malloc((size_t)sq_size * init->max_inline + 1);
	if (!qp->sq || !qp->rq || !qp->inline_data)
		return release(qp, rwf_fail(ENOMEM, "create queue pair: out of memory"));
	if (getrandom(qp->cookie, sizeof qp->cookie, 0) != sizeof qp->cookie)
		return release(qp, rwf_fail(errno, "create queue pair: read random bytes: %s", strerror(errno)));
	qp->head.ops = &rwf_tcp_ops;
	qp->head.pd = pd;
	atomic_store(&qp->head.state, RWF_QPS_INIT);
	qp->dev = dev;
	qp->send_cq = (struct tcp_cq *)init->send_cq;
	qp->recv_cq = (struct tcp_cq *)init->recv_cq;
	qp->fd = -1;
	qp->error = RWF_WC_WR_FLUSH_ERR;
	atomic_store(&qp->arrived_fd, -1);
	qp->sq_cap = init->max_send_wr;
	qp->sq_mask = sq_size - 1;
	qp->rq_cap = init->max_recv_wr;
	qp->rq_mask = rq_size - 1;
	qp->max_inline = init->max_inline;
	rc = enroll(dev, qp);
	if (rc)
		return release(qp, rc);
	qp->links[0].qp = qp->links[1].qp = qp;
	tcp_cq_attach(qp->send_cq, &qp->links[0]);
	if (qp->recv_cq != qp->send_cq)
		tcp_cq_attach(qp->recv_cq, &qp->links[1]);
	atomic_fetch_add(&((struct tcp_pd *)pd)->users, 1);
	*out = &qp->head;
	return 0;
}

/* From here on the listener leaves the queue pair alone; what it left before is taken. */
static void stop_waiting(struct tcp_qp *qp)
{
	struct tcp_device *dev = qp->dev;

	pthread_mutex_lock(&dev->lock);
	if (qp->waiting) {
		qp->waiting = false;
		dev->waiting--;
	}
	pthread_mutex_unlock(&dev->lock);
	tcp_adopt(qp);
}

int tcp_destroy_qp(rwf_qp *head)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	struct tcp_device *dev = qp->dev;

	stop_waiting(qp);
	if (head->state == RWF_QPS_RTS) {
		/* What was placed is placed: the peer may know. */
		tcp_enter(qp->send_cq);
		tcp_acknowledge(qp);
		tcp_leave(qp->send_cq);
	}
	pthread_mutex_lock(&dev->lock);
	dev->qps[head->num % TCP_MAX_QP] = NULL;
	atomic_fetch_sub(&dev->events, (uint32_t)__builtin_popcount(atomic_load(&qp->event_bits)));
	pthread_mutex_unlock(&dev->lock);
	for (int i = 0; i < 2; i++)
		if (qp->links[i].cq)
			tcp_cq_detach(&qp->links[i]);
	if (qp->fd >= 0)
		close(qp->fd);
	atomic_fetch_sub(&((struct tcp_pd *)head->pd)->users, 1);
	return release(qp, 0);
}

int tcp_qp_endpoint(rwf_qp *head, void *buf, size_t cap)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	struct tcp_endpoint ep = qp->dev->address;

	ep.qp_num = head->num;
	memcpy(ep.cookie, qp->cookie, sizeof ep.cookie);
	return tcp_endpoint_encode(&ep, buf, cap);
}

int tcp_connect_qp(rwf_qp *head, const void *peer, size_t len, const struct rwf_connect_attr *attr)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	struct tcp_device *dev = qp->dev;
	struct tcp_endpoint ep;
	int rc = tcp_endpoint_decode(&ep, peer, len);

	if (rc)
		return rc;
	if (head->state != RWF_QPS_INIT)
		return rwf_fail(EINVAL, "connect queue pair 0x%x: it was connected before: make a new one", head->num);
	qp->rnr_timeout_ms = attr->rnr_timeout_ms;
	qp->ack_timeout_ms = attr->ack_timeout_ms;
	if (!attr->active) {
		pthread_mutex_lock(&dev->lock);
		qp->peer = ep;
		qp->passive_deadline_ns = tcp_now_ns() + attr->timeout_ms * 1000000ull;
		qp->waiting = true;
		dev->waiting++;
		atomic_store(&head->state, RWF_QPS_RTR);
		pthread_mutex_unlock(&dev->lock);
		tcp_poke_listener(dev);
		return 0;
	}
	rc = tcp_connect(qp, &ep, attr);
	if (rc)
		return rc;
	atomic_store(&head->state, RWF_QPS_RTS);
	tcp_adopt(qp);
	return 0;
}

void tcp_adopt(struct tcp_qp *qp)
{
	int fd = qp->fd >= 0 ? -1 : atomic_load_explicit(&qp->arrived_fd, memory_order_acquire);

	if (fd < 0)
		return;
	qp->fd = fd;
	qp->frame_bytes = qp->peer_window / 2 < MAX_FRAME ? qp->peer_window / 2 : MAX_FRAME;
	for (int i = 0; i < 2; i++)
		if (qp->links[i].cq && tcp_cq_watch(&qp->links[i], fd))
			tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
	/* Receives posted since the hello are news to the peer. */
	qp->ack_now = qp->told_posted != atomic_load_explicit(&qp->rq_posted, memory_order_relaxed);
	qp->rx_ready = true;
	tcp_cq_ready(&qp->links[0]);
}

static void enter_error(struct tcp_qp *qp, enum rwf_wc_status status)
{
	qp->error = qp->sq_acked == qp->sq_posted ? RWF_WC_WR_FLUSH_ERR : status;
	atomic_store(&qp->head.state, RWF_QPS_ERR);
	qp->rnr_deadline_ns = 0;
	if (qp->fd >= 0)
		shutdown(qp->fd, SHUT_RDWR);
	for (int i = 0; i < 2; i++) {
		if (!qp->links[i].cq)
			continue;
		if (qp->fd >= 0)
			epoll_ctl(qp->links[i].cq->epoll_fd, EPOLL_CTL_DEL, qp->fd, NULL);
		tcp_cq_ready(&qp->links[i]);
	}
}

/*
 * The socket stays open, shut down, until the queue pair is destroyed: closed with data unread it would reset the connection
 * and might take back what was sent last.
 */
void tcp_qp_error(struct tcp_qp *qp, enum rwf_wc_status status)
{
	if (qp->head.state == RWF_QPS_ERR)
		return;
	enter_error(qp, status);
	tcp_raise(qp, RWF_EVENT_QP_FATAL);
}

int tcp_fail_qp(rwf_qp *head)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;

	stop_waiting(qp);
	if (head->state != RWF_QPS_ERR)
		enter_error(qp, RWF_WC_WR_FLUSH_ERR);
	return 0;
}

/* The first outstanding send carries the error, all else is flushed; what does not fit the queue waits until it is polled. */
static bool flush(struct tcp_qp *qp, struct tcp_cq *cq)
{
	struct rwf_wc wc = {.qp_num = qp->head.num};

	while (cq == qp->send_cq && qp->sq_acked != qp->sq_posted) {
		if (tcp_cq_full(cq))
			return true;
		wc.wr_id = qp->sq[qp->sq_acked++ & qp->sq_mask].wr.wr_id;
		wc.status = (uint16_t)qp->error;
		wc.opcode = RWF_WC_SEND;
		qp->error = RWF_WC_WR_FLUSH_ERR;
		tcp_cq_push(cq, qp, &wc, qp->sq_acked);
	}
	while (cq == qp->recv_cq && qp->rq_used != atomic_load_explicit(&qp->rq_posted, memory_order_relaxed)) {
		if (tcp_cq_full(cq))
			return true;
		wc.wr_id = qp->rq[qp->rq_used++ & qp->rq_mask];
		wc.status = RWF_WC_WR_FLUSH_ERR;
		wc.opcode = RWF_WC_RECV_IMM;
		tcp_cq_push(cq, qp, &wc, qp->rq_used);
	}
	return false;
}

bool tcp_qp_progress(struct tcp_link *link)
{
	struct tcp_qp *qp = link->qp;
	bool more;

	if (qp->head.state == RWF_QPS_ERR)
		return !link->cq->overrun && flush(qp, link->cq);
	if (qp->fd < 0)
		return false;
	tcp_transmit(qp);
	more = tcp_receive(qp);
	tcp_transmit(qp);
	return more;
}

static int check_send(struct tcp_qp *qp, const struct rwf_send_wr *wr)
{
	int rc = rwf_check_send(&qp->head, wr, qp->max_inline, RWF_DEV_ANY_MEMORY);

	if (rc)
		return rc;
	if (qp->sq_posted - qp->sq_free >= qp->sq_cap)
		return rwf_fail(ENOMEM, "post send: the send queue's %u entries are taken: poll the completion of a signaled send",
				qp->sq_cap);
	return 0;
}

int tcp_post_send(rwf_qp *head, const struct rwf_send_wr *wr, int n)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	int state = head->state, posted, rc = 0;

	if (state != RWF_QPS_RTS && state != RWF_QPS_ERR)
		return rwf_fail(EINVAL, "post send: queue pair 0x%x is not connected yet", head->num);
	for (posted = 0; posted < n; posted++) {
		uint32_t index = qp->sq_posted & qp->sq_mask;

		rc = check_send(qp, &wr[posted]);
		if (rc)
			break;
		qp->sq[index].wr = wr[posted];
		if (wr[posted].flags & RWF_SEND_INLINE)
			memcpy(qp->inline_data + (size_t)index * qp->max_inline, (const void *)(uintptr_t)wr[posted].laddr,
			       wr[posted].length);
		qp->sq_posted++;
	}
	if (state == RWF_QPS_ERR) {
		tcp_cq_ready(&qp->links[0]);
	} else {
		tcp_adopt(qp);
		tcp_enter(qp->send_cq);
		tcp_transmit(qp);
		if (qp->rnr_deadline_ns) {
			/* The peer may have said meanwhile that it posted receives: an owner that only posts would not hear it. */
			qp->rx_ready = true;
			if (tcp_receive(qp))
				tcp_cq_ready(&qp->links[0]);
			tcp_transmit(qp);
		}
		tcp_leave(qp->send_cq);
	}
	return posted ? posted : rc;
}

/* Now, if the peer has used up the receives it knows of and may be waiting; soon, if it may before long. */
static void announce_receives(struct tcp_qp *qp)
{
	uint32_t left = qp->told_posted - qp->rq_used;

	if (left == 0) {
		tcp_enter(qp->recv_cq);
		tcp_acknowledge(qp);
		tcp_leave(qp->recv_cq);
	} else if (left <= qp->rq_cap / 2) {
		qp->ack_now = true;
		tcp_cq_ready(&qp->links[0]);
	}
}

int tcp_post_recv(rwf_qp *head, uint64_t wr_id, int n)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	uint32_t posted = atomic_load_explicit(&qp->rq_posted, memory_order_relaxed);

	if (n < 0 || (uint32_t)n > qp->rq_cap - (posted - qp->rq_free))
		return rwf_fail(ENOMEM, "post receive: %d more, but %u of the receive queue's %u entries are taken", n,
				posted - qp->rq_free, qp->rq_cap);
	for (int i = 0; i < n; i++)
		qp->rq[posted++ & qp->rq_mask] = wr_id;
	atomic_store_explicit(&qp->rq_posted, posted, memory_order_release);
	if (head->state == RWF_QPS_ERR)
		tcp_cq_ready(&qp->links[qp->recv_cq != qp->send_cq]);
	else if (qp->fd >= 0)
		announce_receives(qp);
	return 0;
}
