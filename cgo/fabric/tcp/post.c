/* Posting. */
#include "tcp.h"

#include <errno.h>

int tcp_post_send(rwf_qp *head, const struct rwf_send_wr *wr, int n)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	int state = head->state, posted, rc = 0;

	if (state != RWF_QPS_RTS && state != RWF_QPS_ERR)
		return rwf_fail(EINVAL, "post send: queue pair 0x%x is not connected yet", head->num);
	for (posted = 0; posted < n; posted++) {
		rc = rwb_sends_check(&qp->out.sends, head, &wr[posted], RWF_DEV_ANY_MEMORY);
		if (rc)
			break;
		rwb_sends_post(&qp->out.sends, &wr[posted]);
	}
	if (state == RWF_QPS_ERR) {
		tcp_cq_ready(&qp->links[0]);
	} else {
		tcp_adopt(qp);
		tcp_enter(qp->send_cq);
		tcp_transmit(qp);
		if (qp->out.rnr_deadline_ns) {
			/* The peer may have posted receives meanwhile, and an owner that only posts would not notice. */
			qp->in.ready = true;
			if (tcp_receive(qp))
				tcp_cq_ready(&qp->links[0]);
			tcp_transmit(qp);
		}
		tcp_leave(qp->send_cq);
	}
	return posted ? posted : rc;
}

/* Announces receives now if the peer has used up those it knows of and may be waiting, soon if it may before long. */
static void announce_receives(struct tcp_qp *qp)
{
	uint32_t left = qp->in.told_posted - qp->in.used;

	if (left == 0) {
		tcp_enter(qp->recv_cq);
		tcp_acknowledge(qp);
		tcp_leave(qp->recv_cq);
	} else if (left <= qp->in.limit / 2) {
		qp->out.ack_now = true;
		tcp_cq_ready(&qp->links[0]);
	}
}

int tcp_post_recv(rwf_qp *head, uint64_t wr_id, int n)
{
	struct tcp_qp *qp = (struct tcp_qp *)head;
	uint32_t posted = atomic_load_explicit(&qp->in.posted, memory_order_relaxed);

	if (n < 0 || (uint32_t)n > qp->in.limit - (posted - qp->in.freed))
		return rwf_fail(ENOMEM, "post receive: %d more, but %u of the receive queue's %u entries are taken", n,
				posted - qp->in.freed, qp->in.limit);
	for (int i = 0; i < n; i++)
		qp->in.wr_ids[posted++ & qp->in.mask] = wr_id;
	atomic_store_explicit(&qp->in.posted, posted, memory_order_release);
	if (head->state == RWF_QPS_ERR)
		tcp_cq_ready(&qp->links[qp->recv_cq != qp->send_cq]);
	else if (qp->fd >= 0)
		announce_receives(qp);
	return 0;
}
