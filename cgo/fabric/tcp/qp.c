/* Queue pairs from creation to their end, and posting. */
#include "tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_FRAME = 1 << 20 };

static int release(struct tcp_qp *qp, int rc)
{
	free(qp->out.ends);
	rwb_qp_free(&qp->base);
	return rc;
}

int tcp_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct tcp_device *dev = (struct tcp_device *)pd->dev;
	struct tcp_qp *qp;

	qp = calloc(1, sizeof *qp);
	if (!qp)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	qp->out.ends = calloc(rwb_pow2(init->max_send_wr), sizeof *qp->out.ends);
	if (rwb_qp_make(&qp->base, init, init->max_inline) || !qp->out.ends)
		return release(qp, rwf_fail(ENOMEM, "create queue pair: out of memory"));
	if (getrandom(qp->cookie, sizeof qp->cookie, 0) != sizeof qp->cookie)
		return release(qp, rwf_fail(errno, "create queue pair: read random bytes: %s", strerror(errno)));
	qp->dev = dev;
	qp->cq = (struct tcp_cq *)init->cq;
	qp->fd = -1;
	atomic_store(&qp->arrived_fd, -1);
	qp->in.imm_only = init->flags & RWF_QP_IMM_ONLY;
	rwb_qp_enter(&qp->base, pd);
	LIST_INSERT_HEAD(&qp->cq->qps, qp, of_cq);
	*out = &qp->base.head;
	return 0;
}

/* Ends its wait for a peer, and takes a socket that came before. */
static void stop_waiting(struct tcp_qp *qp)
{
	int rtr = RWF_QPS_RTR;

	pthread_mutex_lock(&qp->dev->door.device.lock);
	atomic_compare_exchange_strong(&qp->base.head.state, &rtr, RWF_QPS_INIT);
	pthread_mutex_unlock(&qp->dev->door.device.lock);
	tcp_adopt(qp);
}

int tcp_destroy_qp(rwf_qp *head)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;

	stop_waiting(qp);
	if (head->state == RWF_QPS_RTS) {
		/* The peer may need to know what was placed. */
		tcp_enter(qp->cq);
		tcp_acknowledge(qp);
		tcp_leave(qp->cq);
	}
	rwb_qp_leave(&qp->base, &qp->cq->base);
	LIST_REMOVE(qp, of_cq);
	if (qp->queued)
		TAILQ_REMOVE(&qp->cq->ready, qp, ready);
	if (qp->fd >= 0)
		close(qp->fd);
	return release(qp, 0);
}

int tcp_qp_endpoint(rwf_qp *head, void *buf)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	struct tcp_endpoint ep = qp->dev->address;

	ep.qp_num = head->num;
	memcpy(ep.cookie, qp->cookie, sizeof ep.cookie);
	ep.magic = TCP_ENDPOINT_MAGIC;
	ep.version = TCP_WIRE_VERSION;
	memcpy(buf, &ep, sizeof ep);
	return sizeof ep;
}

int tcp_connect_qp(rwf_qp *head, const void *peer, size_t len, const struct rwf_connect_attr *attr)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	struct tcp_device *dev = qp->dev;
	int rc = tcp_endpoint_decode(&qp->peer, peer, len);

	if (rc)
		return rc;
	if ((qp->peer.encrypt || dev->address.encrypt) && (rc = tcp_tls_probe()))
		return rc;
	qp->active = attr->active;
	qp->rnr_timeout_ms = attr->rnr_timeout_ms;
	qp->ack_timeout_ms = attr->ack_timeout_ms;
	if (!attr->active) {
		qp->base.deadline_ns = rwb_now_ns() + attr->timeout_ms * 1000000ull;
		atomic_store(&head->state, RWF_QPS_RTR); /* the listener may fill the rest from here on */
		rwb_notify(dev->door.device.event_fd);
		return 0;
	}
	rc = tcp_connect(qp, attr);
	if (rc)
		return rc;
	atomic_store(&head->state, RWF_QPS_RTS);
	tcp_adopt(qp);
	return 0;
}

void tcp_adopt(struct tcp_qp *qp)
{
	/* The queue pair records that there is more to read, or that the socket is full. */
	struct epoll_event edges = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = qp};
	int fd = -1;

	/* While it still waits for its peer, nothing is read or sent. The listener wakes the queue after it has set the state. */
	if (qp->fd < 0 && qp->base.head.state != RWF_QPS_RTR)
		fd = atomic_load_explicit(&qp->arrived_fd, memory_order_acquire);
	if (fd < 0)
		return;
	qp->fd = fd;
	if ((qp->peer.encrypt || qp->dev->address.encrypt) && tcp_tls_begin(qp))
		tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
	qp->out.frame_bytes = qp->out.window / 2 < MAX_FRAME ? qp->out.window / 2 : MAX_FRAME;
	if (epoll_ctl(qp->cq->base.epoll_fd, EPOLL_CTL_ADD, fd, &edges))
		tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
	/* The peer does not know of receives posted since the hello. */
	qp->out.ack_now = qp->in.announced_posted != atomic_load_explicit(&qp->base.recv_posted, memory_order_relaxed);
	qp->in.ready = true;
	tcp_qp_ready(qp);
}

int tcp_fail_qp(rwf_qp *head)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;

	stop_waiting(qp);
	if (head->state != RWF_QPS_ERR)
		tcp_qp_end(qp, RWF_WC_WR_FLUSH_ERR);
	return 0;
}

int tcp_post_send(rwf_qp *head, const struct rwf_send_wr *wr, int n)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	int state = rwb_sending_state(&qp->base), posted, rc = 0;

	if (state != RWF_QPS_RTS && state != RWF_QPS_ERR)
		return rwf_fail(EINVAL, "post send: queue pair 0x%x is not connected yet", head->num);
	for (posted = 0; posted < n; posted++) {
		rc = rwb_sends_check(&qp->base.sends, head, &wr[posted], RWF_DEV_ANY_MEMORY);
		if (rc)
			break;
		rwb_sends_post(&qp->base.sends, &wr[posted]);
	}
	if (state == RWF_QPS_ERR) {
		tcp_qp_ready(qp);
	} else {
		tcp_adopt(qp);
		tcp_enter(qp->cq);
		tcp_transmit(qp);
		if (qp->out.rnr_deadline_ns) {
			/* The peer may have posted receives since. An owner that only posts would not see them. */
			qp->in.ready = true;
			if (tcp_receive(qp))
				tcp_qp_ready(qp);
			tcp_transmit(qp);
		}
		tcp_leave(qp->cq);
	}
	return posted ? posted : rc;
}

/* Announces receives now if the peer has used all that it knows of, or soon if it has used half. */
static void announce_receives(struct tcp_qp *qp)
{
	uint32_t left = qp->in.announced_posted - qp->base.received;

	if (left == 0) {
		tcp_enter(qp->cq);
		tcp_acknowledge(qp);
		tcp_leave(qp->cq);
	} else if (left <= qp->base.recv_limit / 2) {
		qp->out.ack_now = true;
		tcp_qp_ready(qp);
	}
}

int tcp_post_recv(rwf_qp *head, uint64_t wr_id, int n)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	int rc = rwb_add_receives(&qp->base, wr_id, n);

	if (rc)
		return rc;
	if (head->state == RWF_QPS_ERR)
		tcp_qp_ready(qp);
	else if (qp->fd >= 0)
		announce_receives(qp);
	return 0;
}
