/* Exchanges through MXNet's engine, whose part the program plays: many at once, ones that fail, and the thread that sends them. */
#include "check.h"
#include "include/rackweave_mxnet.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* More tensors than the sender takes at once. */
enum { WAIT_MS = 60000, TENSORS = 150, STEPS = 4, ELEMS = 1000 };

/* As an NDArray it begins with a pointer to its chunk. */
struct array {
	void *chunk;
	float *elems;
	int handles;
};

/* An operation of the engine's, and mxnet::engine::CallbackOnComplete, which run gets a pointer to. */
struct operation {
	void (*release)(void *);
	void *arg;
};

struct on_complete {
	void (*call)(void *engine, void *op, const void *error);
	void *engine, *op;
};

static rw_session *session;
static rw_mx_store *store;
static struct rw_info info = {.size = sizeof info};
static struct array gradients[TENSORS], sums[TENSORS], orders[TENSORS];
static int completed;

/* While holding, operations wait for let_go. */
static struct {
	void (*run)(void *, void *, void *);
	void *context, *arg;
	struct on_complete *done;
} held[TENSORS];
static int holding, nheld;

static void complete(void *engine, void *op, const void *error)
{
	struct operation *o = op;

	CHECK(engine == &completed && !error);
	o->release(o->arg);
	free(o);
	__atomic_add_fetch(&completed, 1, __ATOMIC_SEQ_CST);
}

/* Nothing but holding is in the way of an operation: it runs in the thread that pushes it. */
static int push(void (*run)(void *, void *, void *), void *arg, void (*release)(void *), const void *context, void **reads,
		int nreads, void **writes, int nwrites, const void *property, int priority, const char *name, bool wait)
{
	struct operation *o = malloc(sizeof *o);
	struct on_complete *done = malloc(sizeof *done);

	(void)reads, (void)property, (void)priority, (void)name, (void)wait;
	CHECK(nreads == 0 && nwrites > 0 && writes[0]);
	*o = (struct operation){release, arg};
	*done = (struct on_complete){complete, &completed, o};
	if (holding) {
		CHECK(nheld < TENSORS);
		held[nheld].run = run;
		held[nheld].context = (void *)context;
		held[nheld].arg = arg;
		held[nheld++].done = done;
		return 0;
	}
	run((void *)context, done, arg);
	free(done); /* the engine's dies, too */
	return 0;
}

static void let_go(void)
{
	holding = 0;
	for (int i = 0; i < nheld; i++) {
		held[i].run(held[i].context, held[i].done, held[i].arg);
		free(held[i].done);
	}
	nheld = 0;
}

static int copy_handle(void *array, void **out)
{
	struct array *a = array;

	__atomic_add_fetch(&a->handles, 1, __ATOMIC_SEQ_CST);
	*out = a;
	return 0;
}

static int free_handle(void *array)
{
	struct array *a = array;

	CHECK(__atomic_fetch_sub(&a->handles, 1, __ATOMIC_SEQ_CST) > 0);
	return 0;
}

static int data(void *array, void **out)
{
	*out = ((struct array *)array)->elems;
	return 0;
}

static void make(struct array *a, uint64_t elems)
{
	void *at;

	CHECK(rw_alloc(elems * sizeof(float), &at) == 0);
	*a = (struct array){.chunk = at, .elems = at};
}

static uint64_t elems_of(uint32_t tensor)
{
	return 1 + tensor % 7 * ELEMS;
}

static float element(uint32_t rank, int step, uint32_t tensor, uint64_t i)
{
	return (float)((rank + 1) * (uint32_t)(step + 1) + tensor + i % 5);
}

static int start(uint32_t tensor, uint32_t name)
{
	const struct rw_mx_exchange x = {
		.size = sizeof x,
		.tensor = name,
		.kind = RW_PUSHPULL,
		.elem_bytes = 4,
		.priority = -(int32_t)tensor,
		.elems = elems_of(tensor),
		.src = &gradients[tensor],
		.dst = &sums[tensor],
		.order = &orders[tensor],
	};

	return rw_mx_start(store, &x);
}

static void wait_for(int exchanges)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	for (int i = 0; i < WAIT_MS && __atomic_load_n(&completed, __ATOMIC_SEQ_CST) < exchanges; i++)
		nanosleep(&pause, NULL);
	CHECK(__atomic_load_n(&completed, __ATOMIC_SEQ_CST) == exchanges);
}

static struct rw_mx_state state(void)
{
	struct rw_mx_state now = {.size = sizeof now};

	CHECK(rw_mx_query(store, &now) == 0);
	return now;
}

/* Nothing is in flight, and no handle is kept. */
static void at_rest(void)
{
	CHECK(state().pending == 0 && state().oldest_ms == 0);
	for (int t = 0; t < TENSORS; t++)
		CHECK(gradients[t].handles == 0 && sums[t].handles == 0 && orders[t].handles == 0);
}

static void steps(void)
{
	for (int step = 0; step < STEPS; step++) {
		for (uint32_t t = 0; t < TENSORS; t++)
			for (uint64_t i = 0; i < elems_of(t); i++)
				gradients[t].elems[i] = element(info.rank, step, t, i);
		for (uint32_t t = 0; t < TENSORS; t++)
			CHECK(start(t, t) == 0);
		wait_for((step + 1) * TENSORS);
		for (uint32_t t = 0; t < TENSORS; t++)
			for (uint64_t i = 0; i < elems_of(t); i++) {
				float sum = 0;

				for (uint32_t rank = 0; rank < info.workers; rank++)
					sum += element(rank, step, t, i);
				CHECK(sums[t].elems[i] == sum);
			}
		at_rest();
	}
}

/* Exchanges that cannot be submitted fail; those behind them that were started before go on, and later ones are refused. */
static void failure(void)
{
	struct rw_mx_state after = {0};

	completed = 0;
	CHECK(rw_mx_query(store, &after) == -EINVAL && state().failed == 0);
	holding = 1; /* all workers start all of them before one fails */
	for (uint32_t t = 0; t < TENSORS; t++)
		CHECK(start(t, t == 1 || t == 90 ? TENSORS + t : t) == 0);
	let_go();
	wait_for(TENSORS);
	after = state();
	CHECK(after.failed == -EINVAL && strstr(after.text, "tensor 151 of 150"));
	CHECK(start(0, 0) == -EINVAL);
	at_rest();
}

/* No thread of the library's takes a signal of the program's: where it is blocked elsewhere, it stays pending. */
static void signals(void)
{
	const struct timespec none = {0};
	sigset_t one, before;

	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &one, &before);
	CHECK(kill(getpid(), SIGUSR1) == 0);
	CHECK(sigtimedwait(&one, NULL, &none) == SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* A forked child has no sender to wait for: it may close, and the parent's goes on. */
static void forks(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		rw_mx_close(store);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void open_and_close(const struct rw_mx_engine *engine)
{
	struct rw_mx_engine without = *engine;
	rw_mx_store *other;

	CHECK(rw_mx_open(NULL, engine, &other) == -EINVAL);
	without.data = NULL;
	CHECK(rw_mx_open(session, &without, &other) == -EINVAL);
	for (int i = 0; i < 100; i++) { /* also while its thread only begins */
		CHECK(rw_mx_open(session, engine, &other) == 0);
		rw_mx_close(other);
	}
}

int main(void)
{
	const struct rw_mx_engine engine = {
		.size = sizeof engine, .push_async = push, .copy_handle = copy_handle, .free_handle = free_handle, .data = data};
	struct rw_job job = {.size = sizeof job, .timeout_ms = WAIT_MS};

	CHECK(rw_join(&job, &session) == 0);
	for (uint32_t t = 0; t < TENSORS; t++) { /* one by one, as gluon's deferred parameters come */
		const uint64_t elems = elems_of(t);
		struct rw_parameter parameter = vector(&elems);
		char name[16];

		snprintf(name, sizeof name, "%u", t);
		parameter.name = name;
		CHECK(rw_register(session, &parameter, 1) == 0);
		make(&gradients[t], elems);
		make(&sums[t], elems);
		make(&orders[t], 1);
	}
	CHECK(rw_query(session, &info) == 0 && info.tensors == TENSORS);
	open_and_close(&engine);
	CHECK(rw_mx_open(session, &engine, &store) == 0);
	signals();
	steps();
	forks();
	failure();
	rw_mx_close(store);
	CHECK(rw_barrier(session, "end") == 0);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
