/* The next event of each queue pair, and the threads that sleep until then. */
#include "world.h"

void sim_at(struct sim_qp *qp, enum sim_event event, uint64_t when_ns)
{
	struct rwf_sim *w = sim_of(qp);

	qp->due_ns[event] = when_ns;
	if (qp->active < 0) {
		qp->active = (int)w->active_len;
		w->active[w->active_len++] = qp;
	}
	sim_wake_sleepers(w);
}

void sim_deactivate(struct sim_qp *qp)
{
	struct rwf_sim *w = sim_of(qp);
	struct sim_qp *last;

	if (qp->active < 0)
		return;
	last = w->active[--w->active_len];
	w->active[qp->active] = last;
	last->active = qp->active;
	qp->active = -1;
}

/* A dead host's own events never happen. */
static bool may_happen(const struct sim_qp *qp, int event)
{
	return qp->due_ns[event] != SIM_NEVER && !qp->dev->dead;
}

/* Returns the event that is due first. */
struct sim_choice sim_first_due(struct rwf_sim *w)
{
	struct sim_choice c = {.due_ns = SIM_NEVER};

	for (uint32_t i = 0; i < w->active_len; i++)
		for (int e = 0; e < SIM_EVENTS; e++)
			if (may_happen(w->active[i], e) && w->active[i]->due_ns[e] < c.due_ns)
				c = (struct sim_choice){w->active[i], e, w->active[i]->due_ns[e]};
	return c;
}

/* Returns one of the events that are due by now. */
struct sim_choice sim_any_due(struct rwf_sim *w)
{
	uint64_t count = 0, pick;

	for (uint32_t i = 0; i < w->active_len; i++)
		for (int e = 0; e < SIM_EVENTS; e++)
			count += may_happen(w->active[i], e) && w->active[i]->due_ns[e] <= w->now_ns;
	if (count == 0)
		return (struct sim_choice){.due_ns = SIM_NEVER};
	pick = sim_random(w, count);
	for (uint32_t i = 0;; i++)
		for (int e = 0; e < SIM_EVENTS; e++)
			if (may_happen(w->active[i], e) && w->active[i]->due_ns[e] <= w->now_ns && pick-- == 0)
				return (struct sim_choice){w->active[i], e, w->active[i]->due_ns[e]};
}

void sim_wake_sleepers(struct rwf_sim *w)
{
	for (struct sim_sleeper *s = w->sleepers; s; s = s->next)
		rwb_notify(s->event_fd);
}
