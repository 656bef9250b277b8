/* Operations: starting them, and querying their state. */
#include "internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Decides which of the tensor's buffers the transport reaches directly, and announces the destination to the aggregator. */
static void place(struct rw_worker *w, struct tensor *t)
{
	uint64_t bytes = t->elems * type_size(t->wire_type), bound = 0;
	const uint8_t past = past_cache(w);
	const struct region *to = NULL;

	t->src_region = NULL;
	if (t->memory_type == t->wire_type) {
		if (t->src && !t->coded)
			t->src_region = region_reach(w, t->src, bytes, &t->used[USED_SRC].own);
		if (t->dst && !w->cfg.answers)
			to = t->dst == t->src && t->src_region ? t->src_region
							       : region_reach(w, t->dst, bytes, &t->used[USED_DST].own);
	}
	if (t->kind == RW_PUSH)
		return; /* the answer has no data */
	if (to)
		bound = (uintptr_t)t->dst;
	if (bound != t->bound_dst || (to && (to != t->bound_region || to->mrs->rkey != t->bound_rkey || t->past_cache != past))) {
		t->bound_dst = bound;
		t->past_cache = past;
		t->bound_region = to;
		t->bound_rkey = to ? to->mrs->rkey : 0;
		mark_records(w, t);
	}
}

/* Announces a step ahead of its first push. */
static void announce(struct rw_worker *w)
{
	if (!w->cfg.steps || w->announced)
		return;
	w->announced = 1;
	w->lanes[0].announce = 1;
}

/* Queues the tensor's chunks in their lanes. */
static void queue(struct rw_worker *w, struct tensor *t)
{
	place(w, t);
	for (uint32_t i = t->first_part; i < t->first_part + t->nparts; i++) {
		t->remaining += w->parts[i].count;
		queue_part(w, i);
	}
}

/* The operation is as long as its size says, or longer. */
static int start(struct rw_worker *w, const struct rw_op *given, uint64_t *handle)
{
	struct rw_op copy = {0};
	const struct rw_op *op = &copy;
	int gradient, reads, writes, by_rows, rc;
	struct tensor *t;

	if (given->size < offsetof(struct rw_op, ids))
		return rwf_fail(EINVAL, "submit: the operation's size is %u: set it to sizeof(struct rw_op), %zu", given->size,
				sizeof *op);
	memcpy(&copy, given, given->size < sizeof copy ? given->size : sizeof copy);
	gradient = op->kind == RW_PUSH || op->kind == RW_PUSHPULL;
	reads = gradient || (op->kind == RW_BROADCAST && w->cfg.rank == 0);
	writes = op->kind != RW_PUSH;
	if (op->tensor >= w->ntensors || op->kind > RW_BROADCAST)
		return rwf_fail(EINVAL, "submit: operation %u on tensor %u of %u", op->kind, op->tensor, w->ntensors);
	t = &w->tensors[op->tensor];
	if (t->active)
		return rwf_fail(EBUSY, "submit: tensor %u is still being exchanged: wait for it first", op->tensor);
	if (!op->ids && op->nids)
		return rwf_fail(EINVAL, "submit: tensor %u: %llu ids at NULL: give their address, or 0 of them for all rows",
				op->tensor, (unsigned long long)op->nids);
	if (op->ids && op->nids == 0) /* neither is used, but for the other workers' rows */
		reads = 0, writes = op->kind == RW_PUSHPULL;
	if ((reads && !op->src) || (writes && !op->dst))
		return rwf_fail(EINVAL, "submit: tensor %u has no %s", op->tensor, reads && !op->src ? "source" : "destination");
	if (op->ids && (!t->width || op->kind == RW_BROADCAST))
		return rwf_fail(EINVAL, "submit: ids for %s tensor %u: give none", t->width ? "a broadcast of" : "dense",
				op->tensor);
	if (t->width && op->kind == RW_PUSHPULL && w->cfg.steps)
		return rwf_fail(EINVAL, "submit: pushpull of sparse tensor %u in mode stream: push its rows, then pull them",
				op->tensor);
	by_rows = op->ids || (t->width && gradient);
	rc = by_rows ? rows_begin(t, op) : 0;
	if (rc)
		return rc;
	if (gradient) {
		if (op->hyper)
			set_hyper(w, t, op->hyper);
		announce(w);
		t->epoch = (t->epoch + 1) & ((1u << RW_EPOCH_BITS) - 1);
		t->gradients++;
		if (t->flush) {
			t->flush /= FLUSH_NEXT;
			mark_records(w, t);
		}
	}
	t->coded = gradient && t->coding && coding_begin(t);
	t->kind = op->kind;
	t->by_rows = (uint8_t)by_rows;
	t->src = reads ? op->src : NULL;
	t->dst = writes ? op->dst : NULL;
	if (reads && (!op->ids || op->nids == t->rows->count))
		pages_used(w, op->tensor, USED_SRC, op->src);
	if (writes && (!by_rows || op->kind == RW_PUSHPULL)) /* rows that are pulled are packed */
		pages_used(w, op->tensor, USED_DST, op->dst);
	t->priority = op->priority;
	t->done = op->done;
	t->done_arg = op->done_arg;
	t->seq = w->seq++;
	t->generation++;
	t->active = 1;
	t->remaining = 0;
	w->active++;
	by_rows ? rows_queue(w, t) : queue(w, t);
	*handle = (uint64_t)op->tensor << 32 | t->generation;
	if (t->remaining == 0)
		tensor_done(w, op->tensor, 0);
	return 0;
}

int rw_worker_submit(rw_worker *w, const struct rw_op *ops, uint32_t n, uint64_t *handles)
{
	const struct rw_op *op = ops;
	uint32_t i;
	int rc = 0;

	enter(w);
	run_callbacks(w); /* a tensor has one, so it must be taken before the tensor's next operation */
	for (i = 0; i < n; i++) {
		rc = w->failure ? w->failure : start(w, op, &handles[i]);
		if (rc)
			break;
		op = (const struct rw_op *)((const char *)op + op->size);
	}
	if (i > 0)
		kick(w);
	pthread_mutex_unlock(&w->lock);
	return i > 0 ? (int)i : rc;
}

int rw_worker_commit(rw_worker *w, const float hyper[RW_HYPERS], bool skip, bool skip_non_finite, uint64_t *handle)
{
	struct tensor *t = &w->commit;
	struct record r = {0};
	int rc;

	enter(w);
	rc = w->failure;
	if (!rc && w->active)
		rc = rwf_fail(EBUSY, "commit: %u operations are still in flight: wait for them first", w->active);
	if (!rc) {
		announce(w); /* a step without a push */
		t->generation++;
		t->active = 1;
		t->remaining = w->cfg.nlanes;
		t->epoch = (t->epoch + 1) & ((1u << RW_EPOCH_BITS) - 1);
		r.flags = (skip ? RECORD_SKIP : 0) | (skip_non_finite ? RECORD_SKIP_NON_FINITE : 0);
		memcpy(r.hyper, hyper, sizeof r.hyper);
		w->commit_record = r; /* without a checksum, so that it does not count as an answer */
		w->active++;
		for (uint32_t i = 0; i < w->cfg.nlanes; i++)
			w->lanes[i].commit_state = CHUNK_PENDING;
		*handle = (uint64_t)COMMIT_TENSOR << 32 | t->generation;
		kick(w);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int rw_worker_test(rw_worker *w, uint64_t handle)
{
	int status = 0, rc;

	enter(w);
	rc = op_finished(w, handle, &status);
	pthread_mutex_unlock(&w->lock);
	return rc == 1 && status ? status : rc;
}

void rw_worker_abort(rw_worker *w, const char *text)
{
	enter(w);
	worker_fail(w, RW_EABORTED, "%s", text);
	kick(w);
	pthread_mutex_unlock(&w->lock);
}

uint32_t rw_worker_active(rw_worker *w)
{
	uint32_t n;

	enter(w);
	n = w->active;
	pthread_mutex_unlock(&w->lock);
	return n;
}

int rw_worker_failure(rw_worker *w, char *buf, uint32_t cap)
{
	int rc;

	enter(w);
	rc = w->failure;
	snprintf(buf, cap, "%s", w->failure_text);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void rw_worker_stats(rw_worker *w, struct rw_stats *out)
{
	enter(w);
	*out = w->stats;
	for (uint32_t i = 0; i < w->ntensors; i++)
		out->residual += w->tensors[i].coding ? w->tensors[i].coding->lost : 0;
	pthread_mutex_unlock(&w->lock);
}
