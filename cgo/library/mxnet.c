/* MXNet's engine drives exchanges here: see include/rackweave_mxnet.h. */
#include "../../include/rackweave_mxnet.h"
#include "../fabric/base/wait.h"
#include "library.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* mxnet::engine::CallbackOnComplete of MXNet 1.5 to 1.9. The engine's own copy dies when run returns. */
struct completion {
	void (*call)(void *engine, void *op, const void *error);
	void *engine, *op;
};

enum { SLICE_MS = 200 };
/* How long the sender waits for more to send along, while it is known that the aggregator has something to do; and most at once. */
enum { GATHER_US = 100, MOST_SENT = 64 };
/* A gradient up to this size is searched for NaN by whoever finds it ready, be it the thread of the training script. */
enum { QUICK_BYTES = 64 << 10 };

struct rw_mx_store {
	rw_session *session;
	struct rw_mx_engine engine;
	pthread_mutex_t mu;
	struct exchange *oldest, *newest; /* in flight, in the order they started */
	struct exchange *unsent;          /* the oldest of them that is not submitted */
	uint64_t sent;                    /* how many are, and not done */
	pthread_t sender;
	pthread_cond_t work; /* there are unsent ones, or stopping is set */
	int stopping;
	pid_t owner;
	struct rw_mx_state state; /* without the oldest */
};

/* The arrays of an exchange. */
enum { SRC, DST, ORDER, HANDLES };

/* One exchange from rw_mx_start until the engine lets it go. */
struct exchange {
	rw_mx_store *store;
	struct exchange *older, *newer;
	uint64_t began_ns;
	struct completion complete;
	void *handles[HANDLES]; /* of our own */
	uint64_t elems;
	struct rw_op op;
	float hyper[RW_HYPERS];
	uint8_t nonfinite, elem_bytes;
};

/* Tells the engine that the exchange is done. The engine learns of no failure: later exchanges are refused by the first one. */
static void finish(struct exchange *x, int status)
{
	rw_mx_store *s = x->store;
	const struct completion done = x->complete; /* once the engine knows, exchange and store may be gone */

	if (status) {
		pthread_mutex_lock(&s->mu);
		if (!s->state.failed) {
			s->state.failed = status;
			if (!rw_failure(s->session, s->state.text, sizeof s->state.text))
				snprintf(s->state.text, sizeof s->state.text, "exchanging a tensor failed: %s", rw_error());
		}
		pthread_mutex_unlock(&s->mu);
	}
	done.call(done.engine, done.op, NULL);
}

/* Puts an exchange in flight; under the lock. */
static void enlist(struct exchange *x)
{
	rw_mx_store *s = x->store;

	x->began_ns = rwb_now_ns();
	x->older = s->newest;
	*(s->newest ? &s->newest->newer : &s->oldest) = x;
	s->newest = x;
}

/* Leaves an exchange to the sender: copies of ordinary memory hold up nobody who computes, and few calls carry many tensors. */
static void send(struct exchange *x)
{
	rw_mx_store *s = x->store;

	pthread_mutex_lock(&s->mu);
	enlist(x);
	if (!s->unsent) {
		s->unsent = x;
		pthread_cond_signal(&s->work);
	}
	pthread_mutex_unlock(&s->mu);
}

static void delist(struct exchange *x)
{
	rw_mx_store *s = x->store;

	pthread_mutex_lock(&s->mu);
	*(x->older ? &x->older->newer : &s->oldest) = x->newer;
	*(x->newer ? &x->newer->older : &s->newest) = x->older;
	s->sent--;
	pthread_mutex_unlock(&s->mu);
}

static void done(void *arg, uint64_t handle, int status)
{
	struct exchange *x = arg;

	(void)handle;
	delist(x);
	finish(x, status);
}

/* Where an array's elements lie, in the plain layout: convolutions leave weights in one that only oneDNN reads. */
static int elements(const struct rw_mx_engine *e, void *array, void **out)
{
	if (e->plain_layout)
		e->plain_layout(*(void **)array); /* an NDArray begins with the pointer to its chunk */
	return e->data(array, out) ? -EINVAL : 0;
}

/* Tells whether all elements are finite: their exponents are not all ones. */
static int all_finite(const void *elements, uint64_t n, unsigned elem_bytes)
{
	unsigned bad = 0;

	if (elem_bytes == 2) {
		const uint16_t *v = elements;

		for (uint64_t i = 0; i < n; i++)
			bad |= (v[i] & 0x7c00) == 0x7c00;
	} else {
		const uint32_t *v = elements;

		for (uint64_t i = 0; i < n; i++)
			bad |= (v[i] & 0x7f800000) == 0x7f800000;
	}
	return !bad;
}

/* Counts a gradient that holds a NaN or an infinity; returns an error where it is refused. */
static int judge(struct exchange *x)
{
	rw_mx_store *s = x->store;

	if (x->nonfinite == RW_MX_IGNORE || x->op.kind != RW_PUSHPULL || all_finite(x->op.src, x->elems, x->elem_bytes))
		return 0;
	pthread_mutex_lock(&s->mu);
	if (!s->state.nonfinite++)
		s->state.nonfinite_tensor = x->op.tensor;
	pthread_mutex_unlock(&s->mu);
	return x->nonfinite == RW_MX_REFUSE ? -EDOM : 0;
}

/* The engine calls it when all that the exchange reads is written, and nobody still reads what it writes. */
static void run(void *context, void *on_complete, void *arg)
{
	struct exchange *x = arg;
	const struct rw_mx_engine *e = &x->store->engine;
	void *src = NULL, *dst = NULL;
	int rc = 0;

	(void)context;
	x->complete = *(struct completion *)on_complete;
	if (x->handles[SRC])
		rc = elements(e, x->handles[SRC], &src);
	if (!rc && x->handles[DST])
		rc = elements(e, x->handles[DST], &dst);
	x->op.src = src;
	x->op.dst = dst;
	if (!rc)
		rc = judge(x);
	if (rc)
		finish(x, rc);
	else
		send(x);
}

/* Takes up to MOST_SENT unsent exchanges. */
static uint32_t take(rw_mx_store *s, struct exchange *list[MOST_SENT])
{
	uint32_t n = 0;

	for (; n < MOST_SENT && s->unsent; s->unsent = s->unsent->newer)
		list[n++] = s->unsent;
	s->sent += n;
	return n;
}

static void submit(rw_mx_store *s, struct exchange *const *list, uint32_t n)
{
	struct rw_op ops[MOST_SENT];
	uint64_t handles[MOST_SENT];

	for (uint32_t i = 0; i < n; i++)
		ops[i] = list[i]->op;
	for (uint32_t i = 0; i < n;) {
		int rc = rw_submit(s->session, &ops[i], n - i, handles);

		if (rc < 0)
			done(list[i++], 0, rc);
		else
			i += (uint32_t)rc;
	}
}

static void *send_all(void *arg)
{
	const struct timespec more = {.tv_nsec = GATHER_US * 1000};
	struct exchange *list[MOST_SENT];
	rw_mx_store *s = arg;
	uint32_t n;

	pthread_mutex_lock(&s->mu);
	for (;;) {
		while (!s->unsent && !s->stopping)
			pthread_cond_wait(&s->work, &s->mu);
		if (s->stopping)
			break;
		if (s->sent) {
			pthread_mutex_unlock(&s->mu);
			nanosleep(&more, NULL);
			pthread_mutex_lock(&s->mu);
		}
		n = take(s, list);
		pthread_mutex_unlock(&s->mu);
		submit(s, list, n);
		pthread_mutex_lock(&s->mu);
	}
	pthread_mutex_unlock(&s->mu);
	return NULL;
}

/* The engine calls it once it has no more use of the exchange, whether it ran or not. */
static void release(void *arg)
{
	struct exchange *x = arg;
	rw_mx_store *s = x->store;

	for (int i = 0; i < HANDLES; i++)
		if (x->handles[i])
			s->engine.free_handle(x->handles[i]);
	free(x);
	pthread_mutex_lock(&s->mu);
	s->state.pending--;
	pthread_mutex_unlock(&s->mu);
}

int rw_mx_open(rw_session *session, const struct rw_mx_engine *engine, rw_mx_store **store)
{
	rw_mx_store *s;
	int rc;

	if (!session || engine->size != sizeof *engine || !engine->push_async || !engine->copy_handle || !engine->free_handle ||
	    !engine->data)
		return -EINVAL;
	s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->session = session;
	s->engine = *engine;
	s->state.size = sizeof s->state;
	s->owner = getpid();
	pthread_mutex_init(&s->mu, NULL);
	pthread_cond_init(&s->work, NULL);
	rc = thread_start(&s->sender, "rackweave-mxnet", send_all, s);
	if (rc) {
		free(s);
		return rc;
	}
	*store = s;
	return 0;
}

void rw_mx_close(rw_mx_store *s)
{
	if (s->owner != getpid())
		return; /* a forked child has no sender, and who holds the lock is not in it */
	pthread_mutex_lock(&s->mu);
	s->stopping = 1;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->mu);
	pthread_join(s->sender, NULL);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->mu);
	free(s);
}

/* Adds an array to those the operation writes, unless one of the same memory is there: the engine waits for itself then. */
static int writes(void **list, int n, void *array)
{
	for (int i = 0; i < n; i++)
		if (*(void **)list[i] == *(void **)array)
			return n;
	list[n] = array;
	return n + 1;
}

static const struct {
	int32_t device_type, device_id;
} cpu = {1, 0};
/* FnProperty's: a thread of the engine's own for it; and where it is ready when it is pushed, the thread that pushes. */
static const int prioritized = 3, immediate = 4;

static const int *property(const struct exchange *x)
{
	int scanned = x->op.kind == RW_PUSHPULL && x->nonfinite != RW_MX_IGNORE;

	return scanned && x->elems * x->elem_bytes > QUICK_BYTES ? &prioritized : &immediate;
}

/* Makes an operation that will be queued, and counts it. Returns the failure of an earlier one: then none may be queued. */
static int make(rw_mx_store *s, struct exchange **x)
{
	int rc;

	*x = calloc(1, sizeof **x);
	if (!*x)
		return -ENOMEM;
	(*x)->store = s;
	pthread_mutex_lock(&s->mu);
	rc = s->state.failed;
	s->state.pending += !rc;
	pthread_mutex_unlock(&s->mu);
	if (rc)
		free(*x);
	return rc;
}

int rw_mx_start(rw_mx_store *s, const struct rw_mx_exchange *with)
{
	struct exchange *x;
	int rc;

	if (with->size != sizeof *with || !with->order)
		return -EINVAL;
	rc = make(s, &x);
	if (rc)
		return rc;
	x->elems = with->elems;
	x->nonfinite = with->nonfinite;
	x->elem_bytes = with->elem_bytes;
	x->op = (struct rw_op){
		.size = sizeof x->op,
		.tensor = with->tensor,
		.priority = with->priority,
		.kind = with->kind,
		.done = done,
		.done_arg = x,
	};
	if (with->hyper) {
		memcpy(x->hyper, with->hyper, sizeof x->hyper);
		x->op.hyper = x->hyper;
	}

	/* Everything counts as written: reading in the plain layout may rewrite it. */
	void *const given[HANDLES] = {with->src, with->dst, with->order};
	void *written[HANDLES];
	int n = 0;

	for (int i = 0; i < HANDLES && !rc; i++) {
		if (!given[i])
			continue;
		rc = s->engine.copy_handle(given[i], &x->handles[i]) ? -EINVAL : 0;
		if (!rc)
			n = writes(written, n, x->handles[i]);
	}
	if (rc) {
		release(x);
		return rc;
	}
	return s->engine.push_async(run, x, release, &cpu, NULL, 0, written, n, property(x), with->priority, "rackweave", 0)
		       ? -EINVAL
		       : 0;
}

/* The engine calls it between two steps. Nothing else can go on, so that the wait holds up nobody; rw_abort ends it. */
static void run_end(void *context, void *on_complete, void *arg)
{
	struct exchange *x = arg;
	rw_session *session = x->store->session;
	uint64_t handle;
	int rc;

	(void)context;
	x->complete = *(struct completion *)on_complete;
	pthread_mutex_lock(&x->store->mu);
	enlist(x);
	x->store->sent++;
	pthread_mutex_unlock(&x->store->mu);
	rc = rw_end_step(session, &handle);
	if (!rc)
		do
			rc = rw_wait_all(session, &handle, 1, SLICE_MS);
		while (rc == -ETIMEDOUT);
	delist(x);
	finish(x, rc);
}

int rw_mx_end_step(rw_mx_store *s, void *const *orders, uint32_t n)
{
	struct exchange *x;
	int rc = make(s, &x);

	if (rc)
		return rc;
	return s->engine.push_async(run_end, x, release, &cpu, NULL, 0, (void **)orders, (int)n, &prioritized, 0, "rackweave", 0)
		       ? -EINVAL
		       : 0;
}

int rw_mx_query(rw_mx_store *s, struct rw_mx_state *out)
{
	if (out->size != sizeof *out)
		return -EINVAL;
	pthread_mutex_lock(&s->mu);
	*out = s->state;
	if (s->oldest) {
		out->oldest_ms = (rwb_now_ns() - s->oldest->began_ns) / 1000000 + 1;
		out->oldest_tensor = s->oldest->op.tensor;
	}
	pthread_mutex_unlock(&s->mu);
	return 0;
}

/* DLPack's structs, of version 0: what MXNet 1 takes. */
struct dl_tensor {
	void *data;
	struct {
		int32_t type, id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape, *strides;
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *);
};

struct arena_tensor {
	struct dl_managed managed;
	int64_t shape[];
};

static void delete_tensor(struct dl_managed *m)
{
	rw_free(m->tensor.data);
	free(m->context);
}

int rw_mx_tensor(const int64_t *shape, int32_t ndim, uint8_t code, uint8_t bits, void **managed)
{
	struct arena_tensor *t;
	uint64_t bytes = bits / 8;
	int rc;

	if (ndim < 1 || !bytes)
		return -EINVAL;
	for (int32_t i = 0; i < ndim; i++)
		if (shape[i] < 1 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes))
			return -EINVAL;
	t = malloc(sizeof *t + (size_t)ndim * sizeof *shape);
	if (!t)
		return -ENOMEM;
	t->managed = (struct dl_managed){
		.tensor = {.device = {.type = 1},
			   .ndim = ndim,
			   .dtype = {.code = code, .bits = bits, .lanes = 1},
			   .shape = t->shape},
		.context = t,
		.deleter = delete_tensor,
	};
	memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
	rc = rw_alloc(bytes, &t->managed.tensor.data);
	if (rc < 0)
		free(t);
	else
		*managed = t;
	return rc;
}
