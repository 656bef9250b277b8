/* Completion queues and queue pairs: making and destroying them. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>

int sim_create_cq(rwf_device *base, uint32_t cqe, rwf_cq **out)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct sim_cq *cq = calloc(1, sizeof *cq);
	int full;

	if (!cq || rwb_ring_make(&cq->ring, cqe)) {
		free(cq);
		return rwf_fail(ENOMEM, "create completion queue: no memory for %u entries", cqe);
	}
	cq->base = (rwf_cq){base->ops, base};
	sem_init(&cq->sleeper.sem, 0, 0);
	sim_lock(dev->world);
	full = dev->cqs == SIM_MAX_CQ;
	dev->cqs += !full;
	sim_unlock(dev->world);
	if (full) {
		rwb_ring_free(&cq->ring);
		free(cq);
		return rwf_fail(ENOMEM, "create completion queue: device %s has all its %d in use", dev->name, SIM_MAX_CQ);
	}
	*out = &cq->base;
	return 0;
}

int sim_destroy_cq(rwf_cq *base)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct sim_device *dev = (struct sim_device *)base->dev;
	uint32_t qps;

	sim_lock(dev->world);
	qps = cq->qps;
	dev->cqs -= qps == 0;
	sim_unlock(dev->world);
	if (qps)
		return rwf_fail(EBUSY, "destroy completion queue: %u queue pairs use it", qps);
	sem_destroy(&cq->sleeper.sem);
	rwb_ring_free(&cq->ring);
	free(cq);
	return 0;
}

static void free_qp(struct sim_qp *qp)
{
	rwb_sends_free(&qp->sends);
	free(qp->rq);
	free(qp);
}

static struct sim_qp *new_qp(rwf_pd *pd, const struct rwf_qp_init *init)
{
	struct sim_qp *qp = calloc(1, sizeof *qp);
	uint32_t receives = rwb_pow2(init->max_recv_wr);

	if (!qp)
		return NULL;
	qp->rq = calloc(receives, sizeof *qp->rq);
	if (rwb_sends_make(&qp->sends, init->max_send_wr, init->max_inline) || !qp->rq) {
		free_qp(qp);
		return NULL;
	}
	qp->base.ops = pd->ops;
	qp->base.pd = pd;
	qp->base.state = RWF_QPS_INIT;
	qp->dev = (struct sim_device *)pd->dev;
	qp->pd = (struct sim_pd *)pd;
	qp->cq = (struct sim_cq *)init->cq;
	qp->by_reference = (init->flags & RWF_QP_BY_REFERENCE) && (qp->dev->flags & RWF_DEV_BY_REFERENCE);
	qp->rq_mask = receives - 1;
	qp->rq_max = init->max_recv_wr;
	qp->active = -1;
	qp->lost_since_ns = qp->rnr_since_ns = SIM_NEVER;
	for (int e = 0; e < SIM_EVENTS; e++)
		qp->due_ns[e] = SIM_NEVER;
	return qp;
}

/*
 * Admits a queue pair to the world. The active list gets room for every queue pair, so that no event has to find some.
 * Under the lock.
 */
static int admit(struct sim_qp *qp)
{
	struct rwf_sim *w = sim_of(qp);

	if (w->qps == SIM_MAX_QP)
		return rwf_fail(ENOMEM, "create queue pair: world %d has all its %d in use", w->id, SIM_MAX_QP);
	if (w->qps == w->active_cap) {
		uint32_t cap = w->active_cap ? w->active_cap * 2 : 64;
		struct sim_qp **active = realloc(w->active, cap * sizeof(struct sim_qp *));

		if (!active)
			return rwf_fail(ENOMEM, "create queue pair: no memory");
		w->active = active;
		w->active_cap = cap;
	}
	w->qps++;
	qp->base.num = ++w->last_qp;
	qp->next = qp->dev->qps;
	qp->dev->qps = qp;
	qp->pd->users++;
	qp->cq->qps++;
	return 0;
}

int sim_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct sim_qp *qp;
	int rc;

	qp = new_qp(pd, init);
	if (!qp)
		return rwf_fail(ENOMEM, "create queue pair: no memory for %u sends and %u receives", init->max_send_wr,
				init->max_recv_wr);
	sim_lock(sim_of(qp));
	rc = admit(qp);
	sim_unlock(sim_of(qp));
	if (rc) {
		free_qp(qp);
		return rc;
	}
	*out = &qp->base;
	return 0;
}

int sim_destroy_qp(rwf_qp *base)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);

	sim_lock(w);
	sim_deactivate(qp);
	sim_part(qp);
	rwb_ring_drop(&qp->cq->ring, base);
	for (struct sim_qp **q = &qp->dev->qps; *q; q = &(*q)->next)
		if (*q == qp) {
			*q = qp->next;
			break;
		}
	qp->pd->users--;
	qp->cq->qps--;
	w->qps--;
	sim_unlock(w);
	free_qp(qp);
	return 0;
}
