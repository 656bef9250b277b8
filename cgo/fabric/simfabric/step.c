/* Steps: choosing the next event, and carrying it out. */
#include "world.h"

#include <sched.h>

/* The time that passes in a step with nothing due, fine enough for deadlines of a few milliseconds. */
static const uint64_t idle_ns = 1000000;
/* Shorter sleeps cost more than they spare. */
static const uint64_t spin_ns = 50000;

static void happen(struct sim_due *d)
{
	struct sim_qp *qp = d->qp;
	enum sim_event event = (enum sim_event)(d - qp->due);

	sim_cancel(qp, event);
	switch (event) {
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
}

static uint64_t first_due_ns(const struct rwf_sim *w)
{
	return TAILQ_EMPTY(&w->due) ? SIM_NEVER : TAILQ_FIRST(&w->due)->at_ns;
}

/* Chooses one of the events that are due by now. Returns NULL if no event is due. */
static struct sim_due *choose(struct rwf_sim *w)
{
	uint64_t due = 0, pick;
	struct sim_due *d;

	TAILQ_FOREACH(d, &w->due, entry) {
		if (d->at_ns > w->now_ns)
			break;
		due++;
	}
	if (due == 0)
		return NULL;
	pick = w->network.by_time ? 0 : sim_random(w, due);
	for (d = TAILQ_FIRST(&w->due); pick; pick--)
		d = TAILQ_NEXT(d, entry);
	return d;
}

static void step(struct rwf_sim *w)
{
	struct sim_due *d;

	if (!w->network.by_time)
		w->now_ns += 50 + sim_random(w, 950);
	d = choose(w);
	if (!d) {
		uint64_t ahead_ns = first_due_ns(w) - w->now_ns;

		w->now_ns += ahead_ns < idle_ns ? ahead_ns : idle_ns;
		d = choose(w);
	}
	if (d)
		happen(d);
}

static void catch_up(struct rwf_sim *w)
{
	uint64_t wall = rwb_now_ns() - w->start_ns;

	while (first_due_ns(w) <= wall) {
		if (first_due_ns(w) > w->now_ns)
			w->now_ns = first_due_ns(w);
		happen(TAILQ_FIRST(&w->due));
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
	uint64_t pending = 0;
	struct sim_due *d;

	sim_lock(w);
	if (!w->automatic)
		step(w);
	TAILQ_FOREACH(d, &w->due, entry)
		if (d == &d->qp->due[SIM_DELIVER])
			pending += d->qp->base.sends.posted - d->qp->sent;
		else if (d == &d->qp->due[SIM_ACK])
			pending += d->qp->sent - d->qp->base.acked;
	sim_unlock(w);
	return (int)pending;
}

void sim_sleep(struct rwf_sim *w, int event_fd, uint64_t until_ns)
{
	struct pollfd pfd = {.fd = event_fd, .events = POLLIN};
	struct sim_sleeper self = {.event_fd = event_fd};
	uint64_t wake_ns = first_due_ns(w) < until_ns ? first_due_ns(w) : until_ns;

	if (wake_ns < w->now_ns + spin_ns) {
		sim_unlock(w);
		sched_yield();
		sim_lock(w);
		return;
	}
	/* cppcheck-suppress autoVariables ; it leaves the list before it ends */
	LIST_INSERT_HEAD(&w->sleepers, &self, entry);
	wake_ns -= w->now_ns;
	sim_unlock(w);
	rwb_poll(&pfd, 1, wake_ns);
	pthread_mutex_lock(&w->lock);
	LIST_REMOVE(&self, entry);
	rwb_clear(event_fd);
	catch_up(w);
}
