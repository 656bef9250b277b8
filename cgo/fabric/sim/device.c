/* Provider sim: its objects. What it is and its options: sim.h. */
#include "world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int option_number(const char *options, const char *key, uint64_t *out)
{
	char text[32], *end;

	if (!rwf_option(options, key, text, sizeof text))
		return 0;
	*out = strtoull(text, &end, 0);
	if (end == text || *end)
		return rwf_fail(EINVAL, "open sim: option %s=%s is not a number", key, text);
	return 1;
}

static int sim_open(const char *name, const char *options, rwf_device **out)
{
	static const char *const known[] = {"world", "seed", "auto", "by_reference", "copies_at_post", "maps", "link", NULL};
	uint64_t world = 0, seed = 1, automatic = 0, by_reference = 0, copies_at_post = 0, maps = 0, link = 0;
	int rc = rwf_option_check("sim", options, known), given = 0;
	struct sim_device *dev;

	if (rc || (given = rc = option_number(options, "world", &world)) < 0 ||
	    (rc = option_number(options, "seed", &seed)) < 0 || (rc = option_number(options, "auto", &automatic)) < 0 ||
	    (rc = option_number(options, "by_reference", &by_reference)) < 0 || (rc = option_number(options, "maps", &maps)) < 0 ||
	    (rc = option_number(options, "copies_at_post", &copies_at_post)) < 0 || (rc = option_number(options, "link", &link)) < 0)
		return rc;
	if (link && (by_reference || copies_at_post || maps))
		return rwf_fail(EINVAL, "open sim: a device with link=1 has none of by_reference=1, copies_at_post=1 and maps=1");
	if (given && world == 0)
		return rwf_fail(EINVAL, "open sim: worlds are numbered from 1; leave world= out for the process's own");
	dev = calloc(1, sizeof *dev);
	if (!dev)
		return rwf_fail(ENOMEM, "open sim: no memory for a device");
	dev->world = sim_world_join(world > INT32_MAX ? -1 : (int)world, seed, automatic || !given);
	if (!dev->world) {
		free(dev);
		return -ENODEV;
	}
	dev->base.ops = &rwf_sim_ops;
	snprintf(dev->name, sizeof dev->name, "%s", *name ? name : "sim0");
	dev->flags = RWF_DEV_ANY_MEMORY | (by_reference ? RWF_DEV_BY_REFERENCE : 0) | (copies_at_post ? RWF_DEV_COPIES_AT_POST : 0) |
		     (maps ? RWF_DEV_MAPS : 0) | (link ? RWF_DEV_LINK : 0);
	dev->up_at_ns = SIM_NEVER;
	sim_lock(dev->world);
	dev->id = ++dev->world->last_device;
	dev->next = dev->world->devices;
	dev->world->devices = dev;
	sim_unlock(dev->world);
	*out = &dev->base;
	return 0;
}

/* Any name is a device; this is the one for "". */
static int sim_list(char *buf, size_t cap)
{
	snprintf(buf, cap, "sim0");
	return 1;
}

static int sim_close(rwf_device *base)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct rwf_sim *w = dev->world;

	sim_lock(w);
	if (dev->pds || dev->cqs) {
		int rc = rwf_fail(EBUSY, "close device %s: %u protection domains and %u completion queues are open", dev->name,
				  dev->pds, dev->cqs);

		sim_unlock(w);
		return rc;
	}
	for (struct sim_device **d = &w->devices; *d; d = &(*d)->next)
		if (*d == dev) {
			*d = dev->next;
			break;
		}
	sim_unlock(w);
	free(dev->mrs);
	free(dev);
	sim_world_leave(w);
	return 0;
}

static int sim_query(rwf_device *base, struct rwf_device_attr *out)
{
	struct sim_device *dev = (struct sim_device *)base;

	snprintf(out->provider, sizeof out->provider, "sim");
	memcpy(out->name, dev->name, sizeof out->name);
	out->max_mr_size = UINT64_MAX;
	out->max_qp = SIM_MAX_QP;
	out->max_qp_wr = SIM_MAX_WR;
	out->max_cq = SIM_MAX_CQ;
	out->max_cqe = SIM_MAX_CQE;
	out->max_mr = SIM_MAX_MR;
	out->max_inline = SIM_MAX_INLINE;
	out->flags = dev->flags;
	return 0;
}

static int sim_alloc_pd(rwf_device *base, rwf_pd **out)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct sim_pd *pd = calloc(1, sizeof *pd);

	if (!pd)
		return rwf_fail(ENOMEM, "allocate protection domain: no memory");
	pd->base = (rwf_pd){&rwf_sim_ops, base};
	sim_lock(dev->world);
	dev->pds++;
	sim_unlock(dev->world);
	*out = &pd->base;
	return 0;
}

static int sim_dealloc_pd(rwf_pd *base)
{
	struct sim_pd *pd = (struct sim_pd *)base;
	struct sim_device *dev = (struct sim_device *)base->dev;
	uint32_t users;

	sim_lock(dev->world);
	users = pd->users;
	dev->pds -= users == 0;
	sim_unlock(dev->world);
	if (users)
		return rwf_fail(EBUSY, "deallocate protection domain: %u queue pairs and memory regions are in it", users);
	free(pd);
	return 0;
}

/* Ring sizes are powers of two, so that free-running indices need no division. */
static uint32_t ring_size(uint32_t n)
{
	uint32_t size = 1;

	while (size < n)
		size *= 2;
	return size;
}

static int sim_create_cq(rwf_device *base, uint32_t cqe, rwf_cq **out)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct sim_cq *cq = calloc(1, sizeof *cq);
	int full;

	if (cq)
		cq->ring = calloc(ring_size(cqe), sizeof *cq->ring);
	if (!cq || !cq->ring) {
		free(cq);
		return rwf_fail(ENOMEM, "create completion queue: no memory for %u entries", cqe);
	}
	cq->base = (rwf_cq){&rwf_sim_ops, base};
	cq->mask = ring_size(cqe) - 1;
	cq->limit = cqe;
	sem_init(&cq->sleeper.sem, 0, 0);
	sim_lock(dev->world);
	full = dev->cqs == SIM_MAX_CQ;
	dev->cqs += !full;
	sim_unlock(dev->world);
	if (full) {
		free(cq->ring);
		free(cq);
		return rwf_fail(ENOMEM, "create completion queue: device %s has all its %d in use", dev->name, SIM_MAX_CQ);
	}
	*out = &cq->base;
	return 0;
}

static int sim_destroy_cq(rwf_cq *base)
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
	free(cq->ring);
	free(cq);
	return 0;
}

static void free_qp(struct sim_qp *qp)
{
	free(qp->sq);
	free(qp->inline_bytes);
	free(qp->rq);
	free(qp);
}

static struct sim_qp *new_qp(rwf_pd *pd, const struct rwf_qp_init *init)
{
	struct sim_qp *qp = calloc(1, sizeof *qp);
	uint32_t sq_size = ring_size(init->max_send_wr), rq_size = ring_size(init->max_recv_wr);

	if (!qp)
		return NULL;
	qp->sq = calloc(sq_size, sizeof *qp->sq);
	qp->inline_bytes = calloc(sq_size, init->max_inline ? init->max_inline : 1);
	qp->rq = calloc(rq_size, sizeof *qp->rq);
	if (!qp->sq || !qp->inline_bytes || !qp->rq) {
		free_qp(qp);
		return NULL;
	}
	qp->base.ops = &rwf_sim_ops;
	qp->base.pd = pd;
	qp->base.state = RWF_QPS_INIT;
	qp->dev = (struct sim_device *)pd->dev;
	qp->pd = (struct sim_pd *)pd;
	qp->send_cq = (struct sim_cq *)init->send_cq;
	qp->recv_cq = (struct sim_cq *)init->recv_cq;
	qp->by_reference = (init->flags & RWF_QP_BY_REFERENCE) && (qp->dev->flags & RWF_DEV_BY_REFERENCE);
	qp->sq_mask = sq_size - 1;
	qp->sq_max = init->max_send_wr;
	qp->rq_mask = rq_size - 1;
	qp->rq_max = init->max_recv_wr;
	qp->max_inline = init->max_inline;
	qp->active = -1;
	qp->lost_since_ns = qp->rnr_since_ns = SIM_NEVER;
	for (int e = 0; e < SIM_EVENTS; e++)
		qp->due_ns[e] = SIM_NEVER;
	return qp;
}

/* Under the lock. The active list has room for every queue pair, so that no event has to find some. */
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
	qp->send_cq->qps++;
	qp->recv_cq->qps += qp->recv_cq != qp->send_cq;
	return 0;
}

static int sim_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct sim_qp *qp;
	int rc;

	if (init->max_inline > SIM_MAX_INLINE)
		return rwf_fail(EINVAL, "create queue pair: %u bytes inline, the device %s allows %d", init->max_inline,
				((struct sim_device *)pd->dev)->name, SIM_MAX_INLINE);
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

static int sim_destroy_qp(rwf_qp *base)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);

	sim_lock(w);
	sim_deactivate(qp);
	sim_part(qp);
	sim_drop_completions(qp->send_cq, qp);
	sim_drop_completions(qp->recv_cq, qp);
	for (struct sim_qp **q = &qp->dev->qps; *q; q = &(*q)->next)
		if (*q == qp) {
			*q = qp->next;
			break;
		}
	qp->pd->users--;
	qp->send_cq->qps--;
	qp->recv_cq->qps -= qp->recv_cq != qp->send_cq;
	w->qps--;
	sim_unlock(w);
	free_qp(qp);
	return 0;
}

const struct rwf_ops rwf_sim_ops = {
	.name = "sim",
	.open = sim_open,
	.list = sim_list,
	.close = sim_close,
	.query = sim_query,
	.alloc_pd = sim_alloc_pd,
	.dealloc_pd = sim_dealloc_pd,
	.reg_mr = sim_reg_mr,
	.dereg_mr = sim_dereg_mr,
	.create_cq = sim_create_cq,
	.destroy_cq = sim_destroy_cq,
	.poll_cq = sim_poll_cq,
	.req_notify_cq = sim_req_notify_cq,
	.wait_cq = sim_wait_cq,
	.wake_cq = sim_wake_cq,
	.create_qp = sim_create_qp,
	.destroy_qp = sim_destroy_qp,
	.qp_endpoint = sim_qp_endpoint,
	.connect_qp = sim_connect_qp,
	.fail_qp = sim_fail_qp,
	.post_send = sim_post_send,
	.post_recv = sim_post_recv,
	.map = sim_map,
	.get_async_event = sim_get_async_event,
};
