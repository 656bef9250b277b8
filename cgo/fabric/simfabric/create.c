/* Memory regions, completion queues and queue pairs: making and destroying them. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>

int sim_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	struct rwf_sim *w = ((struct sim_device *)pd->dev)->world;
	struct rwb_mr want = {.access = access, .addr = (uintptr_t)addr, .length = length};
	int slot;

	(void)fd, (void)fd_offset; /* one process: every address is everyone's */
	sim_lock(w);
	slot = rwb_mr_add(pd, &want, out);
	sim_unlock(w);
	if (slot < 0)
		return slot;
	out->rkey = ~out->lkey;
	return 0;
}

int sim_dereg_mr(rwf_pd *pd, uint32_t lkey)
{
	struct rwf_sim *w = ((struct sim_device *)pd->dev)->world;
	int slot;

	sim_lock(w);
	slot = rwb_mr_remove(pd, lkey);
	sim_unlock(w);
	return slot < 0 ? slot : 0;
}

int sim_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out)
{
	return rwb_cq_make(dev, cqe, sizeof(struct sim_cq), out);
}

int sim_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct sim_qp *qp = calloc(1, sizeof *qp);
	int rc;

	if (!qp)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	qp->dev = (struct sim_device *)pd->dev;
	qp->cq = (struct sim_cq *)init->cq;
	qp->by_reference = (init->flags & RWF_QP_BY_REFERENCE) && (qp->dev->base.head.attr.flags & RWF_DEV_BY_REFERENCE);
	qp->trigger = RWF_SIM_FAULTS;
	qp->lost_since_ns = qp->rnr_since_ns = SIM_NEVER;
	for (int e = 0; e < SIM_EVENTS; e++)
		qp->due[e] = (struct sim_due){.at_ns = SIM_NEVER, .qp = qp};
	rc = rwb_qp_make(&qp->base, init, init->max_inline);
	if (rc) {
		rwb_qp_free(&qp->base);
		return rc;
	}
	sim_lock(sim_of(qp));
	rwb_qp_enter(&qp->base, pd);
	qp->base.head.num = ++sim_of(qp)->last_qp; /* the same for the same seed */
	sim_unlock(sim_of(qp));
	*out = &qp->base.head;
	return 0;
}

int sim_destroy_qp(rwf_qp *base)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);

	sim_lock(w);
	sim_cancel_all(qp);
	sim_part(qp);
	rwb_qp_leave(&qp->base, &qp->cq->base);
	sim_unlock(w);
	rwb_qp_free(&qp->base);
	return 0;
}
