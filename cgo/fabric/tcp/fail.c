/* Events of queue pairs, and how they end. */
#include "tcp.h"

#include <sys/epoll.h>
#include <sys/socket.h>

void tcp_poke_listener(struct tcp_device *dev)
{
	rwb_notify(dev->event_fd);
}

void tcp_raise(struct tcp_qp *qp, enum rwf_async_type type)
{
	uint32_t bit = 1u << type;

	if (atomic_fetch_or(&qp->event_bits, bit) & bit)
		return;
	atomic_fetch_add(&qp->dev->events, 1);
	tcp_poke_listener(qp->dev);
}

/*
 * Shuts the socket down but keeps it open until the queue pair is destroyed: closing it with data unread would reset the
 * connection and might take back what was sent last.
 */
void tcp_qp_end(struct tcp_qp *qp, enum rwf_wc_status status)
{
	qp->out.error = qp->out.acked == qp->out.sends.posted ? RWF_WC_WR_FLUSH_ERR : status;
	atomic_store(&qp->head.state, RWF_QPS_ERR);
	qp->out.rnr_deadline_ns = 0;
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

void tcp_qp_error(struct tcp_qp *qp, enum rwf_wc_status status)
{
	if (qp->head.state == RWF_QPS_ERR)
		return;
	tcp_qp_end(qp, status);
	tcp_raise(qp, RWF_EVENT_QP_FATAL);
}
