/* Tensors and operations of a session. */
#include "../fabric/base/wait.h"
#include "library.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

/* Returns tensors that may lack the fields that came later, as they are now; NULL without memory. The caller frees them. */
static struct rw_tensor *grown(const struct rw_tensor *tensors, uint32_t n)
{
	const uint32_t before = offsetof(struct rw_tensor, width);
	const uint32_t size = n > 0 && tensors->size == before ? before : sizeof *tensors;
	struct rw_tensor *out = calloc(n > 0 ? n : 1, sizeof *out);

	for (uint32_t i = 0; out && i < n; i++) {
		memcpy(&out[i], (const char *)tensors + (size_t)i * size, size);
		if (out[i].size == size)
			out[i].size = sizeof *out;
	}
	return out;
}

int rw_add(rw_session *s, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *chunk_lanes, uint64_t nchunks)
{
	struct rw_tensor *now;
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (!s->connected)
		return rwf_fail(ENOTCONN, "add: the session is not connected: call rw_connect first");
	now = grown(tensors, ntensors);
	if (!now)
		return rwf_fail(ENOMEM, "add: no memory for %u tensors", ntensors);
	session_register(s);
	pthread_mutex_lock(&s->lock);
	rc = rw_worker_add(s->worker, now, ntensors, chunk_lanes, nchunks);
	for (uint32_t i = 0; !rc && s->cfg.live_hyper && i < ntensors; i++)
		rc = rw_worker_hyper(s->worker, s->ntensors + i, s->cfg.record);
	if (!rc)
		__atomic_store_n(&s->ntensors, s->ntensors + ntensors, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&s->lock);
	free(now);
	return rc;
}

/* The session's worker for a call, or NULL with the result in *rc. */
static rw_worker *worker_for(rw_session *s, int *rc)
{
	*rc = session_usable(s);
	if (!*rc && __atomic_load_n(&s->ntensors, __ATOMIC_ACQUIRE) == 0)
		*rc = rwf_fail(EINVAL, "no tensors are added: call rw_add first");
	return *rc ? NULL : s->worker;
}

int rw_compress(rw_session *s, uint32_t tensor, const struct rw_codec *codec)
{
	return rw_compress_from(s, tensor, codec, 0);
}

int rw_compress_from(rw_session *s, uint32_t tensor, const struct rw_codec *codec, uint32_t from)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	return w ? rw_worker_compress(w, tensor, codec, from) : rc;
}

int rw_flush(rw_session *s)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	if (w)
		rw_worker_flush(w);
	return w ? 0 : rc;
}

int rw_residual(rw_session *s, uint32_t tensor, float *values, int set)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	return w ? rw_worker_residual(w, tensor, values, set) : rc;
}

int rw_submit(rw_session *s, const struct rw_op *ops, uint32_t n, uint64_t *handles)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);
	struct trace *trace;

	if (!w)
		return rc;
	session_register(s);
	trace = __atomic_load_n(&s->trace, __ATOMIC_ACQUIRE);
	return explain(w, trace ? trace_submit(trace, w, ops, n, handles) : rw_worker_submit(w, ops, n, handles));
}

int rw_test(rw_session *s, uint64_t handle)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	return w ? explain(w, rw_worker_test(w, handle)) : rc;
}

int rw_wait_any(rw_session *s, const uint64_t *handles, uint32_t n, uint32_t timeout_ms, int *status)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	if (!w)
		return rc;
	rc = rw_worker_wait_any(w, handles, n, timeout_ms, status);
	explain(w, *status);
	return rc;
}

int rw_wait_all(rw_session *s, const uint64_t *handles, uint32_t n, uint32_t timeout_ms)
{
	int rc, status = 0;
	rw_worker *w = worker_for(s, &rc);
	uint64_t now = rwb_now_ns(), end = now + timeout_ms * UINT64_C(1000000);

	if (!w)
		return rc;
	for (uint32_t i = 0; i < n && !status; i++) {
		rc = rw_worker_wait_any(w, &handles[i], 1, now < end ? (uint32_t)((end - now) / 1000000) : 0, &status);
		if (rc < 0)
			return rc;
		now = rwb_now_ns();
	}
	return explain(w, status);
}

static int commit(rw_session *s, const float hyper[RW_HYPERS], int skip, int skip_non_finite, uint64_t *handle)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	return w ? explain(w, rw_worker_commit(w, hyper, skip, skip_non_finite, handle)) : rc;
}

int rw_commit(rw_session *s, const struct rw_step *step, uint64_t *handle)
{
	const float hyper[RW_HYPERS] = {step->lr, step->wd, step->scale, step->clip};

	if (step->size < sizeof *step)
		return rwf_fail(EINVAL, "commit: the step's size is %u: set it to sizeof(struct rw_step), %zu", step->size,
				sizeof *step);
	return commit(s, hyper, step->skip, step->skip_non_finite, handle);
}

static int answer(rw_session *s, struct rw_answer *out)
{
	int rc;
	rw_worker *w = worker_for(s, &rc);

	return w ? rw_worker_answer(w, out) : rc;
}

int rw_committed(rw_session *s, float *norm, float *scale)
{
	struct rw_answer a = {0};
	int rc = answer(s, &a);

	*norm = a.norm;
	*scale = a.scale;
	return rc;
}

int rw_end_step(rw_session *s, uint64_t *handle)
{
	static const float none[RW_HYPERS];
	int rc = session_usable(s);

	if (!rc && !s->cfg.steps)
		rc = rwf_fail(EINVAL, "end of step: the job has no steps of single workers: join it in mode stream");
	return rc ? rc : commit(s, none, 0, 0, handle);
}

int rw_step_ended(rw_session *s, uint32_t *step, int *pull)
{
	struct rw_answer a = {0};
	int rc = answer(s, &a);

	*step = a.step;
	*pull = a.pull;
	return rc;
}

void rw_abort(rw_session *s, const char *text)
{
	if (session_usable(s))
		return;
	rw_worker_abort(s->worker, text);
	eventfd_write(s->cancel, 1); /* fails only where it is readable already */
}

int rw_failure(rw_session *s, char *buf, uint32_t cap)
{
	int rc = session_usable(s);

	if (!rc)
		return rw_worker_failure(s->worker, buf, cap);
	snprintf(buf, cap, "%s", rwf_last_error());
	return rc;
}

int rw_stats(rw_session *s, struct rw_stats *out)
{
	struct rw_stats now;
	int rc = session_usable(s);

	if (rc)
		return rc;
	rw_worker_stats(s->worker, &now);
	now.size = out->size;
	memcpy(out, &now, out->size < sizeof now ? out->size : sizeof now);
	return 0;
}
