/* Completion queues, and the ends of queue pairs. */
#include "tcp.h"

#include <sys/epoll.h>
#include <sys/socket.h>

int tcp_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out)
{
	int rc = rwb_cq_make(dev, cqe, sizeof(struct tcp_cq), out);

	if (!rc) {
		struct tcp_cq *cq = (struct tcp_cq *)*out;

		cq->armed = 1;
		TAILQ_INIT(&cq->ready);
	}
	return rc;
}

/*
 * Shuts the socket down but keeps it open until the queue pair is destroyed: closing it with data unread would reset the
 * connection and might take back what was sent last.
 */
void tcp_qp_end(struct tcp_qp *qp, enum rwf_wc_status status)
{
	rwb_set_error(&qp->base, status);
	atomic_store(&qp->base.head.state, RWF_QPS_ERR);
	qp->out.rnr_deadline_ns = 0;
	if (qp->fd >= 0) {
		shutdown(qp->fd, SHUT_RDWR);
		epoll_ctl(qp->cq->base.epoll_fd, EPOLL_CTL_DEL, qp->fd, NULL);
	}
	tcp_qp_ready(qp);
}

void tcp_qp_error(struct tcp_qp *qp, enum rwf_wc_status status)
{
	if (qp->base.head.state == RWF_QPS_ERR)
		return;
	tcp_qp_end(qp, status);
	rwb_raise(&qp->base, RWF_EVENT_QP_FATAL);
}

/* Fails every queue pair of a queue that overran. */
void tcp_cq_overran(struct tcp_qp *qp)
{
	struct tcp_qp *other;

	rwb_raise(&qp->base, RWF_EVENT_CQ_ERR);
	LIST_FOREACH(other, &qp->cq->qps, of_cq)
		tcp_qp_error(other, RWF_WC_WR_FLUSH_ERR);
}
