/* Provider shm: how queue pairs and completion queues end. Owner thread only, but for shm_raise. */
#include "shm.h"

#include <sys/socket.h>

/* Any thread. */
void shm_raise(struct shm_qp *q, int event)
{
	atomic_fetch_or(&q->events, 1u << event);
	rwb_notify(shm_dev(q->base.pd->dev)->event_fd);
}

static void flush(struct shm_cq *cq, struct shm_qp *q, struct rwf_wc wc, uint64_t done)
{
	struct rwb_completion *e = shm_cq_push(cq);

	if (!e)
		return;
	wc.qp_num = q->base.num;
	*e = (struct rwb_completion){wc, &q->base, done};
}

static void flush_sends(struct shm_qp *q, int status)
{
	for (; q->sent != q->sends.posted; status = RWF_WC_WR_FLUSH_ERR) {
		uint64_t wr_id = rwb_send(&q->sends, q->sent++)->wr_id;

		flush(q->send_cq, q, (struct rwf_wc){.wr_id = wr_id, .status = (uint16_t)status, .opcode = RWF_WC_SEND}, q->sent);
	}
}

static void flush_receives(struct shm_qp *q)
{
	while (q->rx_head != q->rq_posted) {
		uint64_t wr_id = q->rq[q->rx_head++ & q->rx_mask];

		flush(q->recv_cq, q, (struct rwf_wc){.wr_id = wr_id, .status = RWF_WC_WR_FLUSH_ERR, .opcode = RWF_WC_RECV_IMM}, 0);
	}
}

/*
 * Ends the queue pair. Delivers what had arrived and flushes the rest, the first waiting send with send_status. The peer
 * learns of it by the end of the socket. The state may be ERR already, since the accepting thread gives passive queue pairs
 * up without touching what belongs to the owner.
 */
void shm_enter_error(struct shm_qp *q, int send_status)
{
	int was;

	if (q->flushed)
		return;
	q->flushed = true;
	was = atomic_exchange(&q->base.state, RWF_QPS_ERR);
	if (was == RWF_QPS_RTS)
		(void)shm_receive(q); /* one that was not the peer's to send is flushed with the rest */
	flush_sends(q, send_status);
	flush_receives(q);
	if (q->sock >= 0 && was == RWF_QPS_RTS) {
		shm_cq_unwatch(q->send_cq, q);
		shm_cq_unwatch(q->recv_cq, q);
		shutdown(q->sock, SHUT_RDWR);
	}
	if (was != RWF_QPS_ERR)
		shm_raise(q, RWF_EVENT_QP_FATAL);
}

/* Fails every queue pair of a queue that overran. */
void shm_cq_check(struct shm_cq *cq)
{
	if (__builtin_expect(!cq->overrun, 1))
		return;
	for (int i = 0; i < cq->nqps; i++)
		shm_enter_error(cq->qps[i], RWF_WC_WR_FLUSH_ERR);
	if (!cq->overrun_told) {
		cq->overrun_told = true;
		atomic_fetch_or(&cq->events, 1u << RWF_EVENT_CQ_ERR);
		rwb_notify(shm_dev(cq->base.dev)->event_fd);
	}
}
