/* Notes when operations began and ended, for timelines. */
#include "../fabric/base/wait.h"
#include "library.h"

#include <errno.h>
#include <stdlib.h>

/* An operation under trace, with what was to be called at its end. */
struct entry {
	struct rw_traced noted;
	rw_done_fn done;
	void *done_arg;
};

/* Bounded: what finds no room is not noted. */
struct trace {
	uint32_t cap;
	uint64_t count; /* of operations, noted or not; atomic */
	struct entry entries[];
};

static void ended(void *arg, uint64_t handle, int status)
{
	struct entry *e = arg;

	__atomic_store_n(&e->noted.ended, rwb_now_ns(), __ATOMIC_RELEASE);
	if (e->done)
		e->done(e->done_arg, handle, status);
}

/* Takes a place for an operation that is about to start. Returns NULL if all are taken. */
static struct entry *begin(struct trace *t, const struct rw_op *op)
{
	uint64_t i = __atomic_fetch_add(&t->count, 1, __ATOMIC_RELAXED);
	struct entry *e = i < t->cap ? &t->entries[i] : NULL;

	if (!e)
		return NULL;
	e->noted.tensor = op->tensor;
	e->noted.kind = op->kind;
	e->done = op->done;
	e->done_arg = op->done_arg;
	__atomic_store_n(&e->noted.began, rwb_now_ns(), __ATOMIC_RELEASE);
	return e;
}

int trace_submit(struct trace *t, rw_worker *w, const struct rw_op *ops, uint32_t n, uint64_t *handles)
{
	for (uint32_t i = 0; i < n; i++) {
		struct rw_op op = ops[i];
		struct entry *e = begin(t, &op);
		int rc;

		if (e) {
			op.done = ended;
			op.done_arg = e;
		}
		rc = rw_worker_submit(w, &op, 1, &handles[i]);
		if (rc == 1)
			continue;
		if (e)
			__atomic_store_n(&e->noted.began, 0, __ATOMIC_RELEASE); /* it did not */
		return i ? (int)i : rc;
	}
	return (int)n;
}

int rw_trace(rw_session *s, uint32_t cap)
{
	struct trace *t, *none = NULL;
	int rc = session_usable(s);

	if (rc)
		return rc;
	t = cap ? calloc(1, sizeof *t + cap * sizeof t->entries[0]) : NULL;
	if (!t)
		return rwf_fail(cap ? ENOMEM : EINVAL, "trace: %u operations: use a number above 0 for which there is memory", cap);
	t->cap = cap;
	if (__atomic_compare_exchange_n(&s->trace, &none, t, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		return 0;
	free(t);
	return rwf_fail(EALREADY, "trace: the session is traced already");
}

int rw_traced(rw_session *s, uint32_t first, struct rw_traced *out, uint32_t n)
{
	struct trace *t;
	uint32_t found = 0;
	uint64_t count;
	int rc = session_usable(s);

	if (rc)
		return rc;
	t = __atomic_load_n(&s->trace, __ATOMIC_ACQUIRE);
	if (!t)
		return rwf_fail(EINVAL, "traced: the session is not traced: call rw_trace first");
	count = __atomic_load_n(&t->count, __ATOMIC_RELAXED);
	for (; first < t->cap && first < count && found < n; first++, found++) {
		const struct rw_traced *noted = &t->entries[first].noted;

		out[found].began = __atomic_load_n(&noted->began, __ATOMIC_ACQUIRE);
		out[found].ended = __atomic_load_n(&noted->ended, __ATOMIC_ACQUIRE);
		out[found].tensor = noted->tensor;
		out[found].kind = noted->kind;
	}
	return (int)found;
}
