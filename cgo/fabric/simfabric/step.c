/* Steps: choosing the next event, and carrying it out. */
#include "world.h"

#include <sched.h>

/* The time that passes in a step with nothing due, fine enough for deadlines of a few milliseconds. */
static const uint64_t idle_ns = 1000000;
/* Shorter sleeps cost more than they spare. */
static const uint64_t spin_ns = 50000;

static void happen(struct sim_choice c)
{
	struct sim_qp *qp = c.qp;
	bool ahead = false;

	qp->due_ns[c.event] = SIM_NEVER;
	switch (c.event) {
	case SIM_DELIVER:
		sim_deliver(qp);
		break;
	case SIM_ACK:
		sim_acknowledge(qp);
		break;
	case SIM_GONE:
	case SIM_GIVE_UP:
		sim_qp_error(qp, RWF_WC_RETRY_EXC_ERR);
		break;
	case SIM_EVENTS:
		break;
	}
	for (int e = 0; e < SIM_EVENTS; e++)
		ahead |= qp->due_ns[e] != SIM_NEVER;
	if (!ahead)
		sim_deactivate(qp);
}

static void pass_to(struct rwf_sim *w, uint64_t ns)
{
	if (ns > w->now_ns)
		w->now_ns = ns - w->now_ns < idle_ns ? ns : w->now_ns + idle_ns;
}

static void step(struct rwf_sim *w)
{
	struct sim_choice c;

	if (w->order == RWF_SIM_BY_TIME) {
		c = sim_first_due(w);
		pass_to(w, c.due_ns);
		if (c.qp && c.due_ns <= w->now_ns)
			happen(c);
		return;
	}
	w->now_ns += 50 + sim_random(w, 950);
	c = sim_any_due(w);
	if (!c.qp) {
		pass_to(w, sim_first_due(w).due_ns);
		c = sim_any_due(w);
	}
	if (c.qp)
		happen(c);
}

static void catch_up(struct rwf_sim *w)
{
	uint64_t wall = rwb_now_ns() - w->start_ns;

	for (;;) {
		struct sim_choice c = sim_first_due(w);

		if (!c.qp || c.due_ns > wall)
			break;
		if (c.due_ns > w->now_ns)
			w->now_ns = c.due_ns;
		happen(c);
	}
	w->now_ns = wall;
}

void sim_lock(struct rwf_sim *w)
{
	pthread_mutex_lock(&w->lock);
	if (w->automatic)
		catch_up(w);
}

void sim_unlock(struct rwf_sim *w)
{
	pthread_mutex_unlock(&w->lock);
}

int rwf_sim_step(struct rwf_sim *w)
{
	uint32_t pending = 0;

	sim_lock(w);
	if (!w->automatic)
		step(w);
	for (uint32_t i = 0; i < w->active_len; i++)
		if (!w->active[i]->dev->dead)
			pending += w->active[i]->base.sends.posted - w->active[i]->base.acked;
	sim_unlock(w);
	return (int)pending;
}

void sim_sleep(struct rwf_sim *w, int event_fd, uint64_t until_ns)
{
	struct pollfd pfd = {.fd = event_fd, .events = POLLIN};
	struct sim_sleeper self = {event_fd, w->sleepers}, **p = &w->sleepers;
	struct sim_choice c = sim_first_due(w);
	uint64_t wake_ns = c.due_ns < until_ns ? c.due_ns : until_ns;

	if (wake_ns < w->now_ns + spin_ns) {
		sim_unlock(w);
		sched_yield();
		sim_lock(w);
		return;
	}
	/* cppcheck-suppress autoVariables ; it leaves the list before it ends */
	w->sleepers = &self;
	wake_ns -= w->now_ns;
	sim_unlock(w);
	rwb_poll(&pfd, 1, wake_ns);
	pthread_mutex_lock(&w->lock);
	while (*p != &self)
		p = &(*p)->next;
	*p = self.next;
	rwb_clear(event_fd);
	catch_up(w);
}
