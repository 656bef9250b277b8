/* Calls of tests to read, steer and strike a world. */
#include "world.h"

#include <string.h>

uint64_t rwf_sim_log_hash(struct rwf_sim *w)
{
	uint64_t hash;

	sim_lock(w);
	hash = w->hash;
	sim_unlock(w);
	return hash;
}

uint64_t rwf_sim_now(struct rwf_sim *w)
{
	uint64_t now;

	sim_lock(w);
	now = w->now_ns;
	sim_unlock(w);
	return now;
}

void rwf_sim_set_network(struct rwf_sim *w, const struct rwf_sim_network *network)
{
	sim_lock(w);
	w->network = *network;
	w->fatal_count = 0;
	sim_unlock(w);
}

void rwf_sim_trace(struct rwf_sim *w, int fd)
{
	sim_lock(w);
	w->trace_fd = fd;
	sim_unlock(w);
}

void rwf_sim_kill_device(rwf_device *base)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct rwb_qp *qp;

	sim_lock(dev->world);
	if (!dev->dead)
		sim_log(dev->world, "kill device", dev->id, 0, 0);
	dev->dead = true;
	LIST_FOREACH(qp, &dev->base.qps, of_device)
		sim_cancel_all((struct sim_qp *)qp);
	sim_unlock(dev->world);
}

/* Under the lock. */
static void set_link(struct sim_device *dev, bool up)
{
	if (dev->down == !up)
		return;
	dev->down = !up;
	dev->events &= ~(1u << RWF_EVENT_PORT_ACTIVE | 1u << RWF_EVENT_PORT_ERR);
	dev->events |= 1u << (up ? RWF_EVENT_PORT_ACTIVE : RWF_EVENT_PORT_ERR);
	sim_log(dev->world, up ? "link up" : "link down", dev->id, 0, 0);
	sim_wake_sleepers(dev->world);
}

void rwf_sim_link(rwf_device *base, bool up)
{
	struct sim_device *dev = (struct sim_device *)base;

	sim_lock(dev->world);
	set_link(dev, up);
	sim_unlock(dev->world);
}

int rwf_sim_link_named(const char *name, bool up)
{
	struct rwf_sim *w = sim_world_join(0);
	struct sim_device *d;
	int n = 0;

	if (!w)
		return 0;
	sim_lock(w);
	LIST_FOREACH(d, &w->devices, entry)
		if (strcmp(d->base.head.attr.name, name) == 0) {
			set_link(d, up);
			n++;
		}
	sim_unlock(w);
	rwf_sim_free(w);
	return n;
}

void rwf_sim_trigger(rwf_qp *base, enum rwf_sim_fault fault)
{
	struct sim_qp *qp = (struct sim_qp *)base;

	sim_lock(sim_of(qp));
	qp->trigger = fault;
	sim_unlock(sim_of(qp));
}

void rwf_sim_shrink_cq(rwf_cq *base, uint32_t cqe)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	struct rwf_sim *w = ((struct sim_device *)base->dev)->world;

	sim_lock(w);
	if (cqe < cq->base.ring.limit)
		cq->base.ring.limit = cqe;
	sim_unlock(w);
}
