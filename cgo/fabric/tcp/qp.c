/* Queue pairs from creation to their end. */
#include "tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_FRAME = 1 << 20 };

/* Finds a place in the table. The number names it and tells its tenants apart (24 bits, as on an RDMA wire). */
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
	tcp_seal_free(qp->seal);
	rwb_sends_free(&qp->out.sends);
	free(qp->out.ends);
	free(qp->in.wr_ids);
	free(qp);
	return rc;
}

int tcp_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct tcp_device *dev = (struct tcp_device *)pd->dev;
	struct tcp_qp *qp;
	uint32_t recvs = rwb_pow2(init->max_recv_wr);
	int rc;

	qp = calloc(1, sizeof *qp);
	if (!qp)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	qp->out.ends = calloc(rwb_pow2(init->max_send_wr), sizeof *qp->out.ends);
	qp->in.wr_ids = calloc(recvs, sizeof *qp->in.wr_ids);
	if (rwb_sends_make(&qp->out.sends, init->max_send_wr, init->max_inline) || !qp->out.ends || !qp->in.wr_ids)
		return release(qp, rwf_fail(ENOMEM, "create queue pair: out of memory"));
	if (getrandom(qp->cookie, sizeof qp->cookie, 0) != sizeof qp->cookie)
		return release(qp, rwf_fail(errno, "create queue pair: read random bytes: %s", strerror(errno)));
	qp->head.ops = pd->ops;
	qp->head.pd = pd;
	atomic_store(&qp->head.state, RWF_QPS_INIT);
	qp->dev = dev;
	qp->send_cq = (struct tcp_cq *)init->send_cq;
	qp->recv_cq = (struct tcp_cq *)init->recv_cq;
	qp->fd = -1;
	qp->out.error = RWF_WC_WR_FLUSH_ERR;
	atomic_store(&qp->join.arrived_fd, -1);
	qp->in.limit = init->max_recv_wr;
	qp->in.mask = recvs - 1;
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

/* Takes the queue pair away from the listener, and takes what that left before. */
static void stop_waiting(struct tcp_qp *qp)
{
	struct tcp_device *dev = qp->dev;

	pthread_mutex_lock(&dev->lock);
	if (qp->join.waiting) {
		qp->join.waiting = false;
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
		/* What was placed is placed, and the peer may know it. */
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
	if (ep.encrypt || dev->address.encrypt) {
		tcp_seal_free(qp->seal); /* of an attempt that failed */
		qp->seal = NULL;
		rc = tcp_seal_make(attr->active ? qp->cookie : ep.cookie, attr->active ? ep.cookie : qp->cookie, attr->active,
				   &qp->seal);
		if (rc)
			return rc;
	}
	qp->rnr_timeout_ms = attr->rnr_timeout_ms;
	qp->ack_timeout_ms = attr->ack_timeout_ms;
	if (!attr->active) {
		pthread_mutex_lock(&dev->lock);
		qp->join.peer = ep;
		qp->join.deadline_ns = rwb_now_ns() + attr->timeout_ms * 1000000ull;
		qp->join.waiting = true;
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

/* Lets the kernel encrypt where it can. */
static void offload_seal(struct tcp_qp *qp)
{
	int rc = qp->seal ? tcp_seal_offload(qp->seal, qp->fd) : 0;

	if (rc > 0) {
		tcp_seal_free(qp->seal);
		qp->seal = NULL;
	} else if (rc < 0) {
		tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
	}
}

void tcp_adopt(struct tcp_qp *qp)
{
	int fd = qp->fd >= 0 ? -1 : atomic_load_explicit(&qp->join.arrived_fd, memory_order_acquire);

	if (fd < 0)
		return;
	qp->fd = fd;
	offload_seal(qp);
	qp->out.frame_bytes = qp->out.window / 2 < MAX_FRAME ? qp->out.window / 2 : MAX_FRAME;
	for (int i = 0; i < 2; i++)
		if (qp->links[i].cq && tcp_cq_watch(&qp->links[i], fd))
			tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
	/* Receives posted since the hello are news to the peer. */
	qp->out.ack_now = qp->in.told_posted != atomic_load_explicit(&qp->in.posted, memory_order_relaxed);
	qp->in.ready = true;
	tcp_cq_ready(&qp->links[0]);
}

int tcp_fail_qp(rwf_qp *head)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;

	stop_waiting(qp);
	if (head->state != RWF_QPS_ERR)
		tcp_qp_end(qp, RWF_WC_WR_FLUSH_ERR);
	return 0;
}
