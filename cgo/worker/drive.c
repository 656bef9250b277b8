/* Driving the queues, for a time, and sleeping meanwhile. */
#include "../fabric/base/wait.h"
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

/* MODERATED_US bounds the sleep for more than one completion, because fewer may arrive before this worker sends more. */
enum { MODERATED_US = 1000, SLICE_US = 100000 };
/* SEVERAL_US bounds the sleep on one of several queues, while the others may have completions. */
enum { SEVERAL_US = 200 };
/* CLAIM_MS bounds the wait of a claim for the driving threads, which give way at once unless a device delays them. */
enum { CLAIM_MS = 5000 };

static uint64_t now_ns(const struct rw_worker *w)
{
	return w->cfg.clock_ns ? __atomic_load_n(w->cfg.clock_ns, __ATOMIC_RELAXED) : rwb_now_ns();
}

static void fail_queue_pairs(struct rw_worker *w)
{
	for (uint32_t i = 0; i < w->cfg.nlanes; i++)
		if (w->lanes[i].qp)
			rwf_fail_qp(w->lanes[i].qp);
	w->fail_qps = 0;
}

/*
 * Handles the loss of a NIC's completion queue with its completions. The lanes on it continue over another NIC, if the worker has
 * one.
 */
static int lose(struct rw_worker *w, uint32_t nic)
{
	if (!w->cfg.resumable || w->cfg.nnics == 1)
		return worker_fail(w, RW_ETRANSPORT, "poll: %s", rwf_last_error());
	w->nics[nic].lost = 1;
	for (uint32_t i = 0; i < w->cfg.nlanes; i++)
		if (w->lanes[i].qp && w->lanes[i].nic == nic)
			w->lanes[i].stream.broken = 1;
	return 0;
}

static int take_from(struct rw_worker *w, uint32_t nic)
{
	struct rwf_wc wc[POLL_BATCH];
	int n = rwf_poll_cq(w->nics[nic].cfg.cq, wc, POLL_BATCH);

	if (n < 0)
		return lose(w, nic);
	for (int i = 0; i < n; i++) {
		struct lane *l = &w->lanes[wc[i].wr_id & SEND_TAG ? wc[i].wr_id << 1 >> 33 : wc[i].wr_id];

		if (wc[i].status != RWF_WC_SUCCESS ? lane_lost(w, l, &wc[i]) : lane_receive(w, l, &wc[i]))
			return w->failure;
	}
	return n;
}

static int take_completions(struct rw_worker *w)
{
	int n = 0, some;

	for (uint32_t i = 0; i < w->cfg.nnics; i++) {
		if (w->nics[i].lanes == 0 || w->nics[i].lost)
			continue;
		some = take_from(w, i);
		if (some < 0)
			return some;
		n += some;
	}
	return n;
}

int drive(struct rw_worker *w)
{
	int n;

	if (w->fail_qps)
		fail_queue_pairs(w);
	if (w->failure)
		return w->failure;
	n = take_completions(w);
	for (uint32_t i = 0; n >= 0 && i < w->cfg.nlanes; i++) {
		struct lane *l = &w->lanes[i];

		if (l->consumed && !l->stream.broken) {
			l->receives += l->consumed;
			if (rwf_post_recv(l->qp, i, (int)l->consumed) < 0)
				n = worker_fail(w, RW_ETRANSPORT, "lane %u: post receive: %s", i, rwf_last_error());
			l->consumed = 0;
		}
		if (n >= 0 && lane_send(w, l))
			n = w->failure;
	}
	if (w->fail_qps)
		fail_queue_pairs(w);
	return n;
}

static void release(struct rw_worker *w)
{
	w->driving = w->news = 0;
	pthread_cond_broadcast(&w->cond);
}

/* Lets the aggregator use the buffers of answers that are here again, because nobody may drive for some time. */
static void rest(struct rw_worker *w)
{
	if (w->driving || w->claims)
		return;
	for (uint32_t i = 0; i < w->cfg.nnics; i++)
		if (w->nics[i].lanes > 0 && !w->nics[i].lost)
			rwf_rest_cq(w->nics[i].cfg.cq);
}

/* Waits while another thread drives. */
static void wait_turn(struct rw_worker *w, uint64_t left_ns)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (left_ns > (uint64_t)SLICE_US * 1000)
		left_ns = (uint64_t)SLICE_US * 1000;
	ts.tv_nsec += (long)left_ns;
	ts.tv_sec += ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	w->waiting++;
	pthread_cond_timedwait(&w->cond, &w->lock, &ts);
	w->waiting--;
}

void kick(struct rw_worker *w)
{
	if (w->driving || w->claims) {
		if (w->sleeping)
			rwf_wake_cq(w->sleeping);
		return;
	}
	w->driving = 1;
	for (uint32_t i = 0; !w->failure && i < w->cfg.nlanes; i++)
		lane_send(w, &w->lanes[i]);
	if (w->fail_qps)
		fail_queue_pairs(w);
	release(w);
	run_callbacks(w);
}

int rw_worker_claim(rw_worker *w)
{
	uint64_t now, deadline;
	int rc = 0;

	enter(w);
	w->claims++;
	for (deadline = now_ns(w) + CLAIM_MS * UINT64_C(1000000); w->driving && (now = now_ns(w)) < deadline;) {
		if (w->sleeping)
			rwf_wake_cq(w->sleeping);
		wait_turn(w, deadline - now);
	}
	if (w->driving) {
		w->claims--;
		rc = rwf_fail(EBUSY, "claim the queues: another thread has driven them for %d ms", CLAIM_MS);
	} else {
		w->driving = 1;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void rw_worker_release(rw_worker *w)
{
	pthread_mutex_lock(&w->lock);
	w->claims--;
	release(w);
	kick(w); /* work was submitted meanwhile */
	run_callbacks(w);
	pthread_mutex_unlock(&w->lock);
}

int rw_worker_progress(rw_worker *w)
{
	int n = 0;

	pthread_mutex_lock(&w->lock);
	if (!w->driving && !w->claims) {
		w->driving = 1;
		n = drive(w);
		release(w);
		run_callbacks(w);
		if (w->active == 0)
			rest(w);
	}
	pthread_mutex_unlock(&w->lock);
	return n;
}

/*
 * Returns the number of completions to sleep for: half of the messages in flight while a lane has more to send, so that the
 * aggregator never runs dry, and all of them at the end.
 */
static uint32_t moderation(struct rw_worker *w)
{
	uint32_t count = UINT32_MAX;

	for (uint32_t i = 0; i < w->cfg.nlanes; i++) {
		const struct lane *l = &w->lanes[i];
		uint32_t want = l->heap_len > 0 || rows_left(w, l) ? l->in_flight / 2 : l->in_flight;

		if (l->fetches > 0 && want > (l->fetches + 1) / 2)
			want = (l->fetches + 1) / 2; /* rows' gradients may wait until their results are fetched */
		if (l->in_flight > 0 && want < count)
			count = want;
	}
	return count == UINT32_MAX || count == 0 ? 1 : count;
}

/*
 * Sleeps, without the lock, until the queue has a completion or the time is over. With several queues it sleeps on one, and not
 * long.
 */
static void nap(struct rw_worker *w, uint64_t left_ns)
{
	uint32_t used = 0, count = moderation(w);
	rwf_cq *cq = w->nics[0].cfg.cq;
	uint64_t us = left_ns / 1000 + 1, limit;

	for (uint32_t i = w->cfg.nnics; i-- > 0;)
		if (w->nics[i].lanes > 0 && !w->nics[i].lost) {
			cq = w->nics[i].cfg.cq;
			used++;
		}
	if (used > 1)
		count = 1;
	limit = used > 1 ? SEVERAL_US : count > 1 ? MODERATED_US : SLICE_US;
	if (rwf_req_notify_cq(cq, count) < 0 || drive(w) != 0)
		return;
	w->stats.sleeps++;
	w->sleeping = cq;
	pthread_mutex_unlock(&w->lock);
	rwf_wait_cq(cq, (int64_t)(us < limit ? us : limit));
	pthread_mutex_lock(&w->lock);
	w->sleeping = NULL;
}

/* Lets threads that wait for the lock take it. A mutex does not, if its owner locks it again at once. */
static void give_way(struct rw_worker *w)
{
	if (__atomic_load_n(&w->entering, __ATOMIC_RELAXED) == 0 && w->waiting == 0)
		return;
	pthread_mutex_unlock(&w->lock);
	sched_yield();
	pthread_mutex_lock(&w->lock);
}

/* Drives until an operation is done or another thread wants to drive. */
static void drive_on(struct rw_worker *w, uint64_t deadline)
{
	uint32_t idle = 0;
	int n;

	w->driving = 1;
	do {
		uint64_t now = now_ns(w);

		n = drive(w);
		if (n == 0 && ++idle > w->cfg.spin && now < deadline)
			nap(w, deadline - now);
		else if (n > 0)
			idle = 0;
		if (now >= deadline)
			break;
		if (__atomic_load_n(&w->entering, __ATOMIC_RELAXED) > 0)
			give_way(w);
	} while (n >= 0 && !w->news && !w->claims && !w->stopping);
	release(w);
	run_callbacks(w);
	give_way(w);
}

/* Makes progress until the condition holds, and returns its value, which is not 0. Returns 0 if the deadline has passed. */
static int drive_until(struct rw_worker *w, int (*holds)(struct rw_worker *w, void *arg), void *arg, uint64_t deadline)
{
	int rc;

	while ((rc = holds(w, arg)) == 0) {
		uint64_t now = now_ns(w);

		if (now >= deadline)
			break;
		if (w->driving || w->claims)
			wait_turn(w, deadline - now);
		else
			drive_on(w, deadline);
	}
	if (w->fail_qps)
		kick(w);
	rest(w);
	return rc;
}

static uint64_t deadline_in(const struct rw_worker *w, uint32_t timeout_ms)
{
	return now_ns(w) + (uint64_t)timeout_ms * 1000000u;
}

struct wanted {
	const uint64_t *handles;
	uint32_t n, which;
	int status;
};

static int any_finished(struct rw_worker *w, void *arg)
{
	struct wanted *wanted = arg;

	for (uint32_t i = 0; i < wanted->n; i++) {
		int rc = op_finished(w, wanted->handles[i], &wanted->status);

		wanted->which = i;
		if (rc != 0)
			return rc;
	}
	return 0;
}

int rw_worker_wait_any(rw_worker *w, const uint64_t *handles, uint32_t n, uint32_t timeout_ms, int *status)
{
	struct wanted wanted = {.handles = handles, .n = n};
	int rc;

	enter(w);
	rc = drive_until(w, any_finished, &wanted, deadline_in(w, timeout_ms));
	pthread_mutex_unlock(&w->lock);
	*status = rc == 1 ? wanted.status : 0;
	return rc == 1 ? (int)wanted.which : rc == 0 ? rwf_fail(ETIMEDOUT, "no operation was done within %u ms", timeout_ms) : rc;
}

static int idle_or_stopping(struct rw_worker *w, void *arg)
{
	(void)arg;
	return w->stopping || w->active == 0;
}

void rw_worker_serve(rw_worker *w)
{
	enter(w);
	while (!w->stopping) {
		if (w->active == 0)
			pthread_cond_wait(&w->cond, &w->lock);
		drive_until(w, idle_or_stopping, NULL, UINT64_MAX);
	}
	pthread_mutex_unlock(&w->lock);
}

void rw_worker_stop(rw_worker *w)
{
	enter(w);
	w->stopping = 1;
	if (w->sleeping)
		rwf_wake_cq(w->sleeping);
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->lock);
}
