/* Queues: posting work, completing it, polling and waiting for completions. */
#include "world.h"

#include <errno.h>
#include <string.h>

static struct rwf_sim *world_of(const rwf_cq *cq)
{
	return ((struct sim_device *)cq->dev)->world;
}

/* The queue has no room: it is lost, and with it every queue pair that uses it. */
static void overrun(struct sim_cq *cq)
{
	struct sim_device *dev = (struct sim_device *)cq->base.dev;

	cq->failed = true;
	dev->events |= 1u << RWF_EVENT_CQ_ERR;
	sim_log(dev->world, "overrun", dev->id, 0, cq->limit);
	for (struct sim_qp *qp = dev->qps; qp; qp = qp->next)
		if (qp->send_cq == cq || qp->recv_cq == cq)
			sim_qp_error(qp, RWF_WC_FATAL_ERR);
	sim_wake_sleepers(dev->world);
}

static void push(struct sim_cq *cq, struct sim_qp *qp, const struct rwf_wc *wc, uint32_t sq_free)
{
	uint32_t length = cq->tail - cq->head;

	if (cq->failed) { /* one that was made on it since has no better luck than those before */
		sim_qp_error(qp, RWF_WC_FATAL_ERR);
		return;
	}
	if (length >= cq->limit || sim_fatal_chance(sim_of(qp), sim_of(qp)->faults.cq_overrun)) {
		overrun(cq);
		return;
	}
	cq->ring[cq->tail++ & cq->mask] = (struct sim_cqe){*wc, qp, sq_free};
	if (cq->armed && (length + 1 >= cq->armed || wc->status != RWF_WC_SUCCESS)) {
		cq->fired = true;
		sim_wake_sleepers(sim_of(qp));
	}
}

static void push_send(struct sim_qp *qp, uint32_t index, enum rwf_wc_status status)
{
	const struct rwf_send_wr *wr = &qp->sq[index & qp->sq_mask];
	struct rwf_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->base.num, .status = (uint16_t)status, .opcode = RWF_WC_SEND};

	if (status == RWF_WC_SUCCESS)
		wc.byte_len = wr->length;
	else
		sim_log(sim_of(qp), "send error", qp->base.num, wr->imm, status);
	push(qp->send_cq, qp, &wc, index + 1);
}

void sim_complete_sends(struct sim_qp *qp, uint32_t upto)
{
	while (qp->base.state != RWF_QPS_ERR && qp->sq_acked != upto) {
		uint32_t index = qp->sq_acked++;

		if (qp->sq[index & qp->sq_mask].flags & RWF_SEND_SIGNALED)
			push_send(qp, index, RWF_WC_SUCCESS);
	}
}

void sim_complete_recv(struct sim_qp *qp, struct rwf_wc *wc)
{
	wc->wr_id = qp->rq[qp->rq_head++ & qp->rq_mask];
	wc->qp_num = qp->base.num;
	wc->opcode = RWF_WC_RECV_IMM;
	qp->rq_held++;
	push(qp->recv_cq, qp, wc, 0);
}

static void flush(struct sim_qp *qp, enum rwf_wc_status first)
{
	for (; qp->sq_acked != qp->sq_tail; first = RWF_WC_WR_FLUSH_ERR)
		push_send(qp, qp->sq_acked++, first);
	while (qp->rq_head != qp->rq_tail)
		sim_complete_recv(qp, &(struct rwf_wc){.status = RWF_WC_WR_FLUSH_ERR});
}

void sim_qp_error(struct sim_qp *qp, enum rwf_wc_status first)
{
	if (qp->base.state == RWF_QPS_ERR)
		return;
	qp->base.state = RWF_QPS_ERR;
	sim_log(sim_of(qp), "queue pair error", qp->base.num, 0, first);
	for (int e = 0; e < SIM_EVENTS; e++)
		qp->due_ns[e] = SIM_NEVER;
	sim_deactivate(qp);
	sim_part(qp);
	flush(qp, first);
	qp->sq_sent = qp->sq_tail;
	sim_raise(qp, RWF_EVENT_QP_FATAL);
}

int sim_fail_qp(rwf_qp *base)
{
	struct sim_qp *qp = (struct sim_qp *)base;

	sim_lock(sim_of(qp));
	sim_qp_error(qp, RWF_WC_WR_FLUSH_ERR);
	sim_unlock(sim_of(qp));
	return 0;
}

void sim_drop_completions(struct sim_cq *cq, struct sim_qp *qp)
{
	uint32_t kept = cq->head;

	for (uint32_t i = cq->head; i != cq->tail; i++)
		if (cq->ring[i & cq->mask].qp != qp)
			cq->ring[kept++ & cq->mask] = cq->ring[i & cq->mask];
	cq->tail = kept;
}

int sim_poll_cq(rwf_cq *base, struct rwf_wc *wc, int n)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = world_of(base);
	int taken = 0;

	sim_lock(w);
	if (cq->failed)
		taken = rwf_fail(EOVERFLOW, "the completion queue overran its %u entries: poll it sooner or make it larger",
				 cq->limit);
	for (; !cq->failed && taken < n && cq->head != cq->tail; taken++) {
		const struct sim_cqe *e = &cq->ring[cq->head++ & cq->mask];

		wc[taken] = e->wc;
		if (e->wc.opcode == RWF_WC_SEND)
			e->qp->sq_free = e->sq_free;
		else
			e->qp->rq_held--;
	}
	sim_unlock(w);
	return taken;
}

int sim_req_notify_cq(rwf_cq *base, uint32_t count)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = world_of(base);

	sim_lock(w);
	cq->armed = count ? count : 1;
	cq->fired = cq->tail - cq->head >= cq->armed;
	sim_unlock(w);
	return 0;
}

static bool ready(struct sim_cq *cq)
{
	bool any = cq->failed || cq->fired || (!world_of(&cq->base)->automatic && cq->head != cq->tail);

	any |= atomic_exchange(&cq->woken, false);
	return any;
}

int sim_wait_cq(rwf_cq *base, int64_t timeout_us)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = world_of(base);
	uint64_t until_ns;
	int something;

	sim_lock(w);
	until_ns = w->now_ns + (timeout_us > 0 && w->automatic ? (uint64_t)timeout_us * 1000 : 0);
	while (!(something = ready(cq)) && w->now_ns < until_ns)
		sim_sleep(w, &cq->sleeper, until_ns);
	cq->armed = 0;
	cq->fired = false;
	sim_unlock(w);
	return something;
}

/* The one call without the lock: a signal handler may be where the lock is held. */
int sim_wake_cq(rwf_cq *base)
{
	struct sim_cq *cq = (struct sim_cq *)base;

	atomic_store(&cq->woken, true);
	sem_post(&cq->sleeper.sem);
	return 0;
}

static int enqueue(struct sim_qp *qp, const struct rwf_send_wr *wr)
{
	uint32_t slot = qp->sq_tail & qp->sq_mask;
	int rc = rwf_check_send(&qp->base, wr, qp->max_inline, qp->dev->flags);

	if (rc)
		return rc;
	if (qp->sq_tail - qp->sq_free == qp->sq_max)
		return rwf_fail(ENOMEM, "post send on queue pair 0x%x: its %u work requests are outstanding; poll a later completion",
				qp->base.num, qp->sq_max);
	qp->sq[slot] = *wr;
	if ((wr->flags & RWF_SEND_INLINE) && wr->length)
		memcpy(qp->inline_bytes + (size_t)slot * qp->max_inline, (const void *)(uintptr_t)wr->laddr, wr->length);
	qp->sq_tail++;
	return 0;
}

int sim_post_send(rwf_qp *base, const struct rwf_send_wr *wr, int n)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);
	int posted = 0, rc = 0;

	sim_lock(w);
	if (base->state != RWF_QPS_RTS && base->state != RWF_QPS_ERR)
		rc = rwf_fail(EINVAL, "post send on queue pair 0x%x: it is not connected", base->num);
	while (rc == 0 && posted < n) {
		rc = enqueue(qp, &wr[posted]);
		if (rc)
			break;
		posted++;
		if (base->state == RWF_QPS_ERR)
			flush(qp, RWF_WC_WR_FLUSH_ERR);
		else
			sim_place_early(qp);
	}
	if (base->state == RWF_QPS_RTS && qp->sq_sent != qp->sq_tail && qp->due_ns[SIM_DELIVER] == SIM_NEVER)
		sim_at(qp, SIM_DELIVER, w->now_ns + sim_latency(w));
	sim_unlock(w);
	return posted ? posted : rc;
}

int sim_post_recv(rwf_qp *base, uint64_t wr_id, int n)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);
	uint32_t occupied;
	int rc = 0;

	sim_lock(w);
	occupied = qp->rq_tail - qp->rq_head + qp->rq_held;
	if (n < 0 || (uint32_t)n > qp->rq_max - occupied)
		rc = rwf_fail(ENOMEM, "post %d receives on queue pair 0x%x: %u of its %u are outstanding", n, base->num, occupied,
			      qp->rq_max);
	for (int i = 0; rc == 0 && i < n; i++)
		qp->rq[qp->rq_tail++ & qp->rq_mask] = wr_id;
	if (base->state == RWF_QPS_ERR)
		flush(qp, RWF_WC_WR_FLUSH_ERR);
	sim_unlock(w);
	return rc;
}
