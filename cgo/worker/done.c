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
		w->finished[(w->finished_head + w->finished_count++) % w->finished_cap] =
			(struct finished){t->done, t->done_arg, (uint64_t)index << 32 | t->generation, status};
		t->done = NULL;
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
	while (w->finished_count > 0) {
		struct finished f = w->finished[w->finished_head];

		w->finished_head = (w->finished_head + 1) % w->finished_cap;
		w->finished_count--;
		pthread_mutex_unlock(&w->lock);
		f.done(f.arg, f.handle, f.status);
		pthread_mutex_lock(&w->lock);
	}
}
