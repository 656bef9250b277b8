/* Completions, and the ends of queue pairs and completion queues. */
#include "world.h"

/* Leaves the peer, which notices a little later or never. */
void sim_part(struct sim_qp *qp)
{
	struct rwf_sim *w = sim_of(qp);
	struct sim_qp *peer = qp->peer;

	qp->peer = NULL;
	if (!peer)
		return;
	peer->peer = NULL;
	if (!qp->dev->dead && !qp->dev->down && !peer->dev->down && !sim_chance(w, RWF_SIM_SILENT_CLOSE))
		sim_at(peer, SIM_GONE, w->now_ns + sim_latency(w));
}

void sim_raise(struct sim_qp *qp, enum rwf_async_type type)
{
	atomic_fetch_or(&qp->base.events, 1u << type);
	sim_wake_sleepers(sim_of(qp));
}

/* Fails a queue that has no room, and with it every queue pair that uses it. */
static void overrun(struct sim_cq *cq)
{
	struct sim_device *dev = (struct sim_device *)cq->base.head.dev;
	struct rwb_qp *qp;

	cq->base.overrun = true;
	dev->events |= 1u << RWF_EVENT_CQ_ERR;
	sim_log(dev->world, "overrun", dev->id, 0, cq->base.ring.limit);
	LIST_FOREACH(qp, &dev->base.qps, of_device)
		if (((struct sim_qp *)qp)->cq == cq)
			sim_qp_error((struct sim_qp *)qp, RWF_WC_FATAL_ERR);
	sim_wake_sleepers(dev->world);
}

static void push(struct sim_cq *cq, struct sim_qp *qp, const struct rwf_wc *wc, uint64_t done)
{
	if (cq->base.overrun) { /* a queue pair that was made on it since fails too */
		sim_qp_error(qp, RWF_WC_FATAL_ERR);
		return;
	}
	if (rwb_ring_length(&cq->base.ring) >= cq->base.ring.limit || sim_chance(sim_of(qp), RWF_SIM_CQ_OVERRUN)) {
		overrun(cq);
		return;
	}
	*rwb_ring_push(&cq->base.ring) = (struct rwb_completion){*wc, &qp->base.head, done};
	if (cq->armed && (rwb_ring_length(&cq->base.ring) >= cq->armed || wc->status != RWF_WC_SUCCESS)) {
		cq->fired = true;
		sim_wake_sleepers(sim_of(qp));
	}
}

static void push_send(struct sim_qp *qp, uint64_t index, enum rwf_wc_status status)
{
	const struct rwf_send_wr *wr = rwb_send(&qp->base.sends, index);
	struct rwf_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->base.head.num, .status = (uint16_t)status, .opcode = RWF_WC_SEND};

	if (status == RWF_WC_SUCCESS)
		wc.byte_len = wr->length;
	else
		sim_log(sim_of(qp), "send error", qp->base.head.num, wr->imm, status);
	push(qp->cq, qp, &wc, index + 1);
}

void sim_complete_sends(struct sim_qp *qp, uint64_t upto)
{
	while (qp->base.head.state != RWF_QPS_ERR && qp->base.acked != upto) {
		uint64_t index = qp->base.acked++;

		if (rwb_send(&qp->base.sends, index)->flags & RWF_SEND_SIGNALED)
			push_send(qp, index, RWF_WC_SUCCESS);
	}
}

void sim_complete_recv(struct sim_qp *qp, struct rwf_wc *wc)
{
	wc->wr_id = qp->base.wr_ids[qp->base.received++ & qp->base.recv_mask];
	wc->qp_num = qp->base.head.num;
	wc->opcode = RWF_WC_RECV_IMM;
	push(qp->cq, qp, wc, qp->base.received);
}

void sim_flush(struct sim_qp *qp, enum rwf_wc_status first)
{
	for (; qp->base.acked != qp->base.sends.posted; first = RWF_WC_WR_FLUSH_ERR)
		push_send(qp, qp->base.acked++, first);
	while (qp->base.received != qp->base.recv_posted)
		sim_complete_recv(qp, &(struct rwf_wc){.status = RWF_WC_WR_FLUSH_ERR});
}

void sim_qp_error(struct sim_qp *qp, enum rwf_wc_status first)
{
	if (qp->base.head.state == RWF_QPS_ERR)
		return;
	qp->base.head.state = RWF_QPS_ERR;
	sim_log(sim_of(qp), "queue pair error", qp->base.head.num, 0, first);
	sim_cancel_all(qp);
	sim_part(qp);
	sim_flush(qp, first);
	qp->sent = qp->base.sends.posted;
	sim_raise(qp, RWF_EVENT_QP_FATAL);
}
