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
	struct rwf_sim *w = world_of(base);
	int taken;

	sim_lock(w);
	taken = rwb_cq_take((struct rwb_cq *)base, wc, n);
	sim_unlock(w);
	return taken;
}

int sim_req_notify_cq(rwf_cq *base, uint32_t count)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = world_of(base);

	sim_lock(w);
	cq->armed = count ? count : 1;
	cq->fired = rwb_ring_length(&cq->base.ring) >= cq->armed;
	sim_unlock(w);
	return 0;
}

/* Reports whether a wait is over, and takes the wake that ends it. */
static bool take_news(struct sim_cq *cq)
{
	bool woken = atomic_exchange(&cq->base.head.woken, false);

	return woken || cq->base.overrun || cq->fired || (!world_of(&cq->base.head)->automatic && rwb_ring_length(&cq->base.ring));
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
		sim_sleep(w, base->wake_fd, until_ns);
	cq->armed = 0;
	cq->fired = false;
	sim_unlock(w);
	return something;
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
		rc = rwb_sends_check(&qp->base.sends, base, &wr[posted], qp->dev->base.head.attr.flags);
		if (rc)
			break;
		rwb_sends_post(&qp->base.sends, &wr[posted++]);
		if (base->state == RWF_QPS_ERR)
			sim_flush(qp, RWF_WC_WR_FLUSH_ERR);
		else
			sim_place_early(qp);
	}
	if (base->state == RWF_QPS_RTS && qp->sent != qp->base.sends.posted && qp->due[SIM_DELIVER].at_ns == SIM_NEVER)
		sim_at(qp, SIM_DELIVER, w->now_ns + sim_latency(w));
	sim_unlock(w);
	return posted ? posted : rc;
}

int sim_post_recv(rwf_qp *base, uint64_t wr_id, int n)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);
	int rc;

	sim_lock(w);
	rc = rwb_add_receives(&qp->base, wr_id, n);
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
	if (!(qp->dev->base.head.attr.flags & RWF_DEV_MAPS))
		rwf_fail(ENOTSUP, "map on queue pair 0x%x: its device was opened without maps=1", base->num);
	else if (base->state != RWF_QPS_RTS || !sim_reachable(qp) || qp->placed != qp->base.sends.posted)
		rwf_fail(EAGAIN, "map on queue pair 0x%x: its peer is out of reach, or earlier requests wait in its send queue",
			 base->num);
	else if (!sim_remote_access(qp->peer, rkey, raddr, length))
		rwf_fail(EACCES, "map on queue pair 0x%x: key 0x%x does not allow %u bytes at 0x%llx to be written", base->num,
			 rkey, length, (unsigned long long)raddr);
	else
		data = (void *)(uintptr_t)raddr;
	sim_unlock(sim_of(qp));
	return data;
}
