/* The events ahead, in the order of their times, and the threads that sleep until then. */
#include "world.h"

void sim_cancel(struct sim_qp *qp, enum sim_event event)
{
	struct sim_due *d = &qp->due[event];

	if (d->at_ns != SIM_NEVER)
		TAILQ_REMOVE(&sim_of(qp)->due, d, entry);
	d->at_ns = SIM_NEVER;
}

void sim_cancel_all(struct sim_qp *qp)
{
	for (int e = 0; e < SIM_EVENTS; e++)
		sim_cancel(qp, e);
}

/* A dead host's own events never happen. */
void sim_at(struct sim_qp *qp, enum sim_event event, uint64_t at_ns)
{
	struct rwf_sim *w = sim_of(qp);
	struct sim_due *d = &qp->due[event], *next;

	if (qp->dev->dead)
		return;
	sim_cancel(qp, event);
	d->at_ns = at_ns;
	TAILQ_FOREACH(next, &w->due, entry)
		if (next->at_ns > at_ns)
			break;
	if (next)
		TAILQ_INSERT_BEFORE(next, d, entry);
	else
		TAILQ_INSERT_TAIL(&w->due, d, entry);
	sim_wake_sleepers(w);
}

void sim_wake_sleepers(struct rwf_sim *w)
{
	struct sim_sleeper *s;

	LIST_FOREACH(s, &w->sleepers, entry)
		rwb_notify(s->event_fd);
}
