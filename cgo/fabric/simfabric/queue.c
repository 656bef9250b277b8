/* Queues: posting work, completing it, polling and waiting for completions. */
#include "world.h"

#include <errno.h>

static struct rwf_sim *world_of(const rwf_cq *cq)
{
	return ((struct sim_device *)cq->dev)->world;
}

int sim_fail_qp(rwf_qp *base)
{
	struct sim_qp *qp = (struct sim_qp *)base;

	sim_lock(sim_of(qp));
	sim_qp_error(qp, RWF_WC_WR_FLUSH_ERR);
	sim_unlock(sim_of(qp));
	return 0;
}

int sim_poll_cq(rwf_cq *base, struct rwf_wc *wc, int n)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = world_of(base);
	const struct rwb_completion *e;
	int taken = 0;

	sim_lock(w);
	if (cq->failed)
		taken = rwf_fail(EOVERFLOW, "the completion queue overran its %u entries: poll it sooner or make it larger",
				 cq->ring.limit);
	while (!cq->failed && taken < n && (e = rwb_ring_pop(&cq->ring))) {
		struct sim_qp *qp = (struct sim_qp *)e->qp;

		wc[taken++] = e->wc;
		if (e->wc.opcode == RWF_WC_SEND)
			qp->sends.freed = e->done;
		else
			qp->rq_held--;
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
	cq->fired = rwb_ring_length(&cq->ring) >= cq->armed;
	sim_unlock(w);
	return 0;
}

/* Reports whether a wait is over, and takes the wake that ends it. */
static bool take_news(struct sim_cq *cq)
{
	bool woken = atomic_exchange(&cq->woken, false);

	return woken || cq->failed || cq->fired || (!world_of(&cq->base)->automatic && rwb_ring_length(&cq->ring));
}

int sim_wait_cq(rwf_cq *base, int64_t timeout_us)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = world_of(base);
	uint64_t until_ns;
	int something;

	sim_lock(w);
	until_ns = w->now_ns + (timeout_us > 0 && w->automatic ? (uint64_t)timeout_us * 1000 : 0);
	while (!(something = take_news(cq)) && w->now_ns < until_ns)
		sim_sleep(w, &cq->sleeper, until_ns);
	cq->armed = 0;
	cq->fired = false;
	sim_unlock(w);
	return something;
}

/* Takes no lock, because a signal handler may have interrupted the lock's holder. */
int sim_wake_cq(rwf_cq *base)
{
	struct sim_cq *cq = (struct sim_cq *)base;

	atomic_store(&cq->woken, true);
	sem_post(&cq->sleeper.sem);
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
		rc = rwb_sends_check(&qp->sends, base, &wr[posted], qp->dev->flags);
		if (rc)
			break;
		rwb_sends_post(&qp->sends, &wr[posted++]);
		if (base->state == RWF_QPS_ERR)
			sim_flush(qp, RWF_WC_WR_FLUSH_ERR);
		else
			sim_place_early(qp);
	}
	if (base->state == RWF_QPS_RTS && qp->sent != qp->sends.posted && qp->due_ns[SIM_DELIVER] == SIM_NEVER)
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
		sim_flush(qp, RWF_WC_WR_FLUSH_ERR);
	sim_unlock(w);
	return rc;
}

void *sim_map(rwf_qp *base, uint32_t rkey, uint64_t raddr, uint32_t length)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	void *data = NULL;

	sim_lock(sim_of(qp));
	if (!(qp->dev->flags & RWF_DEV_MAPS))
		rwf_fail(ENOTSUP, "map on queue pair 0x%x: its device was opened without maps=1", base->num);
	else if (base->state != RWF_QPS_RTS || !sim_reachable(qp) || qp->placed != qp->sends.posted)
		rwf_fail(EAGAIN, "map on queue pair 0x%x: its peer is out of reach, or earlier requests wait in its send queue",
			 base->num);
	else if (!sim_remote_mr(qp->peer, rkey, raddr, length))
		rwf_fail(EACCES, "map on queue pair 0x%x: key 0x%x does not allow %u bytes at 0x%llx to be written", base->num,
			 rkey, length, (unsigned long long)raddr);
	else
		data = (void *)(uintptr_t)raddr;
	sim_unlock(sim_of(qp));
	return data;
}
