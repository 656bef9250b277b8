/* Callbacks that return late, because they wait for tensors and start them again: each is called once. */
#include "check.h"

#include <pthread.h>
#include <time.h>

enum { TENSORS = 3, ELEMS = 1000, OPERATIONS = 200, WAIT_MS = 30000 };

static rw_session *session;
static float w[TENSORS][ELEMS];
static struct rw_op pulls[TENSORS];
static uint64_t handles[TENSORS];
static pthread_mutex_t lock; /* recursive, because a callback may run within another's calls */
static int started, called, calls[TENSORS][2 * OPERATIONS];

static void start(void)
{
	int n = rw_submit(session, pulls, TENSORS, handles);

	CHECK(n > 0 || strstr(rw_error(), "still being exchanged"));
	started += n > 0 ? n : 0;
}

static void again(void *arg, uint64_t handle, int status)
{
	(void)arg;
	CHECK(status == 0 && (uint32_t)handle < 2 * OPERATIONS);
	CHECK(__atomic_add_fetch(&calls[handle >> 32][(uint32_t)handle], 1, __ATOMIC_SEQ_CST) == 1);
	pthread_mutex_lock(&lock);
	if (started < OPERATIONS) {
		CHECK(rw_wait_all(session, handles, TENSORS, WAIT_MS) == 0);
		start();
	}
	pthread_mutex_unlock(&lock);
	__atomic_add_fetch(&called, 1, __ATOMIC_SEQ_CST);
}

int main(void)
{
	static const char *const names[TENSORS] = {"a", "b", "c"};
	const struct timespec pause = {.tv_nsec = 1000000};
	const uint64_t elems = ELEMS;
	struct rw_job job = {.size = sizeof job, .timeout_ms = WAIT_MS, .mode = "two-phase", .optimizer = "sgd_torch"};
	struct rw_parameter parameters[TENSORS];
	pthread_mutexattr_t recursive;

	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&lock, &recursive);
	CHECK(rw_join(&job, &session) == 0);
	for (uint32_t t = 0; t < TENSORS; t++) {
		parameters[t] = vector(&elems);
		parameters[t].name = names[t];
		pulls[t] = (struct rw_op){
			.size = sizeof *pulls, .tensor = t, .src = w[t], .dst = w[t], .kind = RW_BROADCAST, .done = again};
	}
	CHECK(rw_register(session, parameters, TENSORS) == 0);
	pthread_mutex_lock(&lock);
	start();
	for (uint32_t t = 0; t < TENSORS; t++)
		pulls[t].kind = RW_PULL; /* of the first operation on, which broadcast the parameters */
	pthread_mutex_unlock(&lock);
	for (int i = 0, more = 1; i < WAIT_MS && more; i++) {
		pthread_mutex_lock(&lock);
		more = __atomic_load_n(&called, __ATOMIC_SEQ_CST) < started;
		pthread_mutex_unlock(&lock);
		nanosleep(&pause, NULL);
	}
	CHECK(called == started);
	CHECK(rw_barrier(session, "end") == 0);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
