/* Operations: how they start, how they end, and who drives the queues meanwhile. */
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long a wait for more than one completion may sleep: fewer may be all that comes before this worker sends more. */
enum { MODERATED_US = 1000, SLICE_US = 100000 };
/* And one for one of several queues, while the others may have something. */
enum { SEVERAL_US = 200 };
/* How long a claim waits for those who drive: they give way at once, unless a device keeps them. */
enum { CLAIM_MS = 5000 };

static uint64_t now_ns(const struct rw_worker *w)
{
	struct timespec ts;

	if (w->cfg.clock_ns)
		return __atomic_load_n(w->cfg.clock_ns, __ATOMIC_RELAXED);
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void fail_queue_pairs(struct rw_worker *w)
{
	for (uint32_t i = 0; i < w->cfg.nlanes; i++)
		if (w->lanes[i].qp)
			rwf_fail_qp(w->lanes[i].qp);
	w->fail_qps = 0;
}

int worker_fail(struct rw_worker *w, int code, const char *fmt, ...)
{
	va_list ap;

	if (w->failure)
		return w->failure;
	w->failure = code;
	va_start(ap, fmt);
	vsnprintf(w->failure_text, sizeof w->failure_text, fmt, ap);
	va_end(ap);
	for (uint32_t i = 0; i < w->ntensors; i++)
		if (w->tensors[i].active)
			tensor_done(w, i, code);
	if (w->commit.active)
		tensor_done(w, COMMIT_TENSOR, code);
	w->fail_qps = 1;
	pthread_cond_broadcast(&w->cond);
	return code;
}

void tensor_done(struct rw_worker *w, uint32_t index, int status)
{
	struct tensor *t = tensor_of(w, index);

	t->active = 0;
	t->status = status;
	w->active--;
	if (t->done) {
		w->finished[(w->finished_head + w->finished_count++) % w->finished_cap] = (struct finished){
			t->done, t->done_arg, (uint64_t)index << 32 | t->generation, status};
		t->done = NULL;
	}
}

/* Decides which of the tensor's buffers the transport reaches itself, and tells the aggregator where answers go. */
static void place(struct rw_worker *w, struct tensor *t)
{
	uint64_t bytes = t->elems * type_size(t->wire_type), bound = 0;
	const struct region *to = NULL;

	t->direct_src = t->direct_dst = 0;
	t->src_region = NULL;
	if (t->memory_type == t->wire_type) {
		if (t->src)
			t->src_region = region_reach(w, t->src, bytes, &t->auto_src);
		if (t->dst)
			to = t->dst == t->src ? t->src_region : region_reach(w, t->dst, bytes, &t->auto_dst);
		t->direct_src = t->src_region != NULL;
		t->direct_dst = to != NULL;
	}
	if (t->kind == RW_PUSH)
		return; /* no answer to place */
	if (to)
		bound = (uintptr_t)t->dst;
	if (bound != t->bound_dst || (to && (to != t->bound_region || to->rkey[0] != t->bound_rkey))) {
		t->bound_dst = bound;
		t->bound_region = to;
		t->bound_rkey = to ? to->rkey[0] : 0;
		mark_records(w, t);
	}
}

static int start(struct rw_worker *w, const struct rw_op *op, uint64_t *handle)
{
	int reads = op->kind == RW_PUSH || op->kind == RW_PUSHPULL || (op->kind == RW_BROADCAST && w->cfg.rank == 0);
	int writes = op->kind != RW_PUSH;
	struct tensor *t;

	if (op->tensor >= w->ntensors || op->kind > RW_BROADCAST)
		return rwf_fail(EINVAL, "submit: operation %u on tensor %u of %u", op->kind, op->tensor, w->ntensors);
	t = &w->tensors[op->tensor];
	if (t->active)
		return rwf_fail(EBUSY, "submit: tensor %u is still being exchanged: wait for it first", op->tensor);
	if ((reads && !op->src) || (writes && !op->dst))
		return rwf_fail(EINVAL, "submit: tensor %u has no %s", op->tensor, reads && !op->src ? "source" : "destination");
	t->kind = op->kind;
	t->src = reads ? op->src : NULL;
	t->dst = writes ? op->dst : NULL;
	if (reads)
		pages_used(w, op->tensor, USED_SRC, op->src);
	if (writes)
		pages_used(w, op->tensor, USED_DST, op->dst);
	t->priority = op->priority;
	t->done = op->done;
	t->done_arg = op->done_arg;
	t->seq = w->seq++;
	t->generation++;
	t->active = 1;
	t->remaining = 0;
	if (op->kind == RW_PUSH || op->kind == RW_PUSHPULL)
		t->epoch = (t->epoch + 1) & ((1u << RW_EPOCH_BITS) - 1);
	place(w, t);
	w->active++;
	for (uint32_t i = 0; i < w->cfg.nlanes; i++) {
		uint32_t part = w->part_index[t->first_part + i];

		if (part == NONE)
			continue;
		t->remaining += w->lanes[i].parts[part].count;
		lane_queue(w, &w->lanes[i], part);
	}
	*handle = (uint64_t)op->tensor << 32 | t->generation;
	return 0;
}

/* A NIC's completion queue is lost, and what it held: the lanes on it go on over another NIC, where there is one. */
static int lose(struct rw_worker *w, uint32_t nic)
{
	if (!w->cfg.resumable || w->cfg.nnics == 1)
		return worker_fail(w, RW_ETRANSPORT, "poll: %s", rwf_last_error());
	w->nics[nic].lost = 1;
	for (uint32_t i = 0; i < w->cfg.nlanes; i++)
		if (w->lanes[i].qp && w->lanes[i].nic == nic)
			w->lanes[i].broken = 1;
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

		if (l->consumed && !l->broken) {
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

void run_callbacks(struct rw_worker *w)
{
	while (w->finished_count > 0) {
		struct finished f = w->finished[w->finished_head];

		w->finished_head = (w->finished_head + 1) % w->finished_cap;
		w->finished_count--;
		pthread_mutex_unlock(&w->lock);
		f.done(f.arg, f.handle, f.status);
		pthread_mutex_lock(&w->lock);
	}
}

static void release(struct rw_worker *w)
{
	w->driving = 0;
	pthread_cond_broadcast(&w->cond);
}

/* Waits its turn while another thread drives. */
static void wait_turn(struct rw_worker *w, uint64_t left_ns)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (left_ns > (uint64_t)SLICE_US * 1000)
		left_ns = (uint64_t)SLICE_US * 1000;
	ts.tv_nsec += (long)left_ns;
	ts.tv_sec += ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&w->cond, &w->lock, &ts);
}

/* Lets new work out: by this thread if nobody drives, else by waking the one that does. */
static void kick(struct rw_worker *w)
{
	if (w->driving || w->claims) {
		if (w->dozing)
			rwf_wake_cq(w->dozing);
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

	if (forked(w))
		return RW_EFORKED;
	pthread_mutex_lock(&w->lock);
	w->claims++;
	for (deadline = now_ns(w) + CLAIM_MS * UINT64_C(1000000); w->driving && (now = now_ns(w)) < deadline;) {
		if (w->dozing)
			rwf_wake_cq(w->dozing);
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
	if (forked(w))
		return;
	pthread_mutex_lock(&w->lock);
	w->claims--;
	release(w);
	kick(w); /* what was submitted meanwhile */
	run_callbacks(w);
	pthread_mutex_unlock(&w->lock);
}

int rw_submit(rw_worker *w, const struct rw_op *ops, int n, uint64_t *handles)
{
	int i, rc = 0;

	if (forked(w))
		return RW_EFORKED;
	pthread_mutex_lock(&w->lock);
	for (i = 0; i < n && !(rc = w->failure ? w->failure : start(w, &ops[i], &handles[i])); i++)
		;
	if (i > 0)
		kick(w);
	pthread_mutex_unlock(&w->lock);
	return i > 0 ? i : rc;
}

int rw_commit(rw_worker *w, void *record, uint64_t *handle)
{
	struct tensor *t = &w->commit;
	int rc;

	if (forked(w))
		return RW_EFORKED;
	pthread_mutex_lock(&w->lock);
	rc = w->failure;
	if (!rc && w->active)
		rc = rwf_fail(EBUSY, "commit: %u operations are still in flight: wait for them first", w->active);
	if (!rc) {
		t->generation++;
		t->active = 1;
		t->remaining = w->cfg.nlanes;
		t->epoch = (t->epoch + 1) & ((1u << RW_EPOCH_BITS) - 1);
		w->commit_record = record;
		w->active++;
		for (uint32_t i = 0; i < w->cfg.nlanes; i++)
			w->lanes[i].commit_state = CHUNK_PENDING;
		*handle = (uint64_t)COMMIT_TENSOR << 32 | t->generation;
		kick(w);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* 1: finished, its status in *status; 0: in flight; negative: no such operation. */
static int finished(struct rw_worker *w, uint64_t handle, int *status)
{
	uint32_t index = (uint32_t)(handle >> 32);
	struct tensor *t;

	if (index != COMMIT_TENSOR && index >= w->ntensors)
		return rwf_fail(EINVAL, "handle 0x%llx: no such operation", (unsigned long long)handle);
	t = tensor_of(w, index);
	if (t->generation == (uint32_t)handle && t->active)
		return 0;
	/* An older operation of the tensor must have succeeded, or this one could not have been started. */
	*status = t->generation == (uint32_t)handle ? t->status : 0;
	return 1;
}

int rw_progress(rw_worker *w)
{
	int n = 0;

	if (forked(w))
		return RW_EFORKED;
	pthread_mutex_lock(&w->lock);
	if (!w->driving && !w->claims) {
		w->driving = 1;
		n = drive(w);
		release(w);
		run_callbacks(w);
	}
	pthread_mutex_unlock(&w->lock);
	return n;
}

int rw_test(rw_worker *w, uint64_t handle)
{
	int status = 0, rc;

	if (forked(w))
		return RW_EFORKED;
	pthread_mutex_lock(&w->lock);
	rc = finished(w, handle, &status);
	pthread_mutex_unlock(&w->lock);
	return rc == 1 && status ? status : rc;
}

/*
 * How many completions to sleep for. While a lane has more to send, half of what is in flight, so that the aggregator never
 * runs dry; at the end, all of it.
 */
static uint32_t moderation(const struct rw_worker *w)
{
	uint32_t count = UINT32_MAX;

	for (uint32_t i = 0; i < w->cfg.nlanes; i++) {
		const struct lane *l = &w->lanes[i];
		uint32_t want = l->heap_len > 0 ? l->in_flight / 2 : l->in_flight;

		if (l->in_flight > 0 && want < count)
			count = want;
	}
	return count == UINT32_MAX || count == 0 ? 1 : count;
}

/* Sleeps, without the lock, until the queue has something or the time is up; of several queues, on one, and not long. */
static void doze(struct rw_worker *w, uint64_t left_ns)
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
	w->dozing = cq;
	pthread_mutex_unlock(&w->lock);
	rwf_wait_cq(cq, (int64_t)(us < limit ? us : limit));
	pthread_mutex_lock(&w->lock);
	w->dozing = NULL;
}

int rw_wait(rw_worker *w, uint64_t handle, uint32_t timeout_ms)
{
	uint64_t now, deadline;
	uint32_t idle = 0;
	int status = 0, rc;

	if (forked(w))
		return RW_EFORKED;
	pthread_mutex_lock(&w->lock);
	now = now_ns(w);
	deadline = now + (uint64_t)timeout_ms * 1000000u;
	while ((rc = finished(w, handle, &status)) == 0) {
		if (w->driving || w->claims) {
			now = now_ns(w);
			if (now < deadline)
				wait_turn(w, deadline - now);
		} else {
			w->driving = 1;
			if (drive(w) != 0) {
				idle = 0;
			} else if (++idle > w->cfg.spin) {
				now = now_ns(w);
				doze(w, now < deadline ? deadline - now : 0);
			}
			release(w);
			run_callbacks(w);
		}
		if (idle > w->cfg.spin || w->driving || w->claims) {
			now = now_ns(w);
			if (now >= deadline && finished(w, handle, &status) == 0)
				worker_fail(w, -ETIMEDOUT, "tensor %u: no answer for every chunk within %u ms",
					    (uint32_t)(handle >> 32), timeout_ms);
		}
	}
	if (w->fail_qps && !w->driving && !w->claims) {
		w->driving = 1;
		fail_queue_pairs(w);
		release(w);
		run_callbacks(w);
	}
	pthread_mutex_unlock(&w->lock);
	return rc == 1 ? status : rc;
}

void rw_worker_abort(rw_worker *w, const char *text)
{
	if (forked(w))
		return;
	pthread_mutex_lock(&w->lock);
	worker_fail(w, RW_EABORTED, "%s", text);
	kick(w);
	pthread_mutex_unlock(&w->lock);
}

int rw_worker_failure(rw_worker *w, char *buf, uint32_t cap)
{
	int rc;

	if (forked(w)) {
		snprintf(buf, cap, "this process is a forked child of the one that joined the job: join the job anew in it");
		return RW_EFORKED;
	}
	pthread_mutex_lock(&w->lock);
	rc = w->failure;
	snprintf(buf, cap, "%s", w->failure_text);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void rw_worker_stats_get(rw_worker *w, struct rw_worker_stats *out)
{
	memset(out, 0, sizeof *out);
	if (forked(w))
		return;
	pthread_mutex_lock(&w->lock);
	*out = w->stats;
	pthread_mutex_unlock(&w->lock);
}
