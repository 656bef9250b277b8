/* The ends of operations, and of the worker. */
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

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
	w->news = 1;
	if (t->done) {
		t->next_finished = NONE;
		*(w->finished_head == NONE ? &w->finished_head : &w->tensors[w->finished_tail].next_finished) = index;
		w->finished_tail = index;
	}
}

int op_finished(struct rw_worker *w, uint64_t handle, int *status)
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

void run_callbacks(struct rw_worker *w)
{
	while (w->finished_head != NONE) {
		const struct tensor t = w->tensors[w->finished_head];
		uint64_t handle = (uint64_t)w->finished_head << 32 | t.generation;

		w->finished_head = t.next_finished;
		pthread_mutex_unlock(&w->lock);
		t.done(t.done_arg, handle, t.status);
		pthread_mutex_lock(&w->lock);
	}
}
