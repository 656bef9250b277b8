/* Two-phase steps: gradients are pushed, a commit updates the parameters, and a pull takes them. */
#include "check.h"

#include <math.h>

enum { ELEMS = 20000, WAIT_MS = 30000 };

static rw_session *session;

static void run(const struct rw_op *op)
{
	uint64_t handle;

	CHECK(rw_submit(session, op, 1, &handle) == 1);
	CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0);
}

static int near(double a, double b)
{
	return fabs(a - b) <= 1e-5 * fabs(b);
}

int main(void)
{
	const uint64_t elems = ELEMS;
	struct rw_job job = {.size = sizeof job, .timeout_ms = WAIT_MS, .mode = "two-phase", .optimizer = "sgd_torch"};
	struct rw_parameter p = vector(&elems);
	struct rw_info info = {.size = sizeof info};
	struct rw_step step = {.size = sizeof step, .lr = 0.5f};
	static float w[ELEMS], g[ELEMS];
	const struct rw_op broadcast = {.size = sizeof broadcast, .kind = RW_BROADCAST, .src = w, .dst = w};
	const struct rw_op push = {.size = sizeof push, .kind = RW_PUSH, .src = g},
			   pull = {.size = sizeof pull, .kind = RW_PULL, .dst = w};
	float norm, scale, expected = 1;
	uint64_t handle;

	CHECK(rw_join(&job, &session) == 0);
	CHECK(rw_register(session, &p, 1) == 0);
	CHECK(rw_query(session, &info) == 0);
	for (int i = 0; i < ELEMS; i++) {
		w[i] = info.rank == 0 ? expected : -1;
		g[i] = (float)(info.rank + 1);
	}
	run(&broadcast);
	step.scale = 1.0f / (float)info.workers;
	for (int round = 0; round < 3; round++) {
		float mean = (float)(info.workers + 1) / 2;

		/* Plain, clipped to half its norm, skipped. */
		step.clip = round == 1 ? mean * sqrtf(ELEMS) / 2 : 0;
		step.skip = round == 2;
		run(&push);
		CHECK(rw_commit(session, &step, &handle) == 0);
		CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0);
		CHECK(rw_committed(session, &norm, &scale) == 0);
		CHECK(near(norm, mean * sqrt(ELEMS)));
		CHECK(near(scale, step.scale / (round == 1 ? 2 : 1)));
		if (round < 2)
			expected -= step.lr * mean / (round == 1 ? 2 : 1);
		run(&pull);
		for (int i = 0; i < ELEMS; i++)
			CHECK(near(w[i], expected));
	}
	CHECK(rw_end_step(session, &handle) < 0 && strstr(rw_error(), "mode stream"));
	CHECK(rw_barrier(session, "end") == 0);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
