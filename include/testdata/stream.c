/* Mode stream: every worker ends its own steps, a policy holds workers that are too far ahead, and changes on the way. */
#include "check.h"

enum { ELEMS = 20000, STEPS = 6, WAIT_MS = 30000 };

static rw_session *session;

static void await(uint64_t handle)
{
	CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0);
}

static void run(const struct rw_op *op)
{
	uint64_t handle;

	CHECK(rw_submit(session, op, 1, &handle) == 1);
	await(handle);
}

int main(void)
{
	/* Powers of two, so that whole gradients add up exactly in any order. */
	const struct rw_hyper hyper[] = {{"lr", 0.25}, {"scale", 0.5}};
	const uint64_t elems = ELEMS;
	struct rw_job job = {.size = sizeof job,
			     .timeout_ms = WAIT_MS,
			     .optimizer = "sgd_torch",
			     .hyper = hyper,
			     .nhyper = 2,
			     .policy = "ssp:s=0"};
	struct rw_parameter p = vector(&elems);
	struct rw_info info = {.size = sizeof info};
	static float w[ELEMS], g[ELEMS];
	const struct rw_op pushpull = {.size = sizeof pushpull, .kind = RW_PUSHPULL, .src = g, .dst = w},
			   pull = {.size = sizeof pull, .kind = RW_PULL, .dst = w};
	uint64_t handle;
	uint32_t next;
	int must;

	CHECK(rw_join(&job, &session) == 0);
	CHECK(rw_register(session, &p, 1) == 0);
	CHECK(rw_query(session, &info) == 0);
	for (int i = 0; i < ELEMS; i++)
		g[i] = 1;
	for (uint32_t step = 0; step < STEPS; step++) {
		if (step == STEPS / 2 && info.rank == 0) {
			CHECK(rw_set_policy(session, "ssp:s=-1") < 0 && strstr(rw_error(), "use 0 to"));
			CHECK(rw_set_policy(session, "ssp:s=1") == 0);
			CHECK(rw_report_loss(session, 0.5) == 0);
		}
		run(&pushpull);
		CHECK(rw_end_step(session, &handle) == 0);
		await(handle);
		CHECK(rw_step_ended(session, &next, &must) == 0 && next == step + 1);
		if (must)
			run(&pull);
		if (step < STEPS / 2) /* all of the steps so far, and perhaps of the next */
			CHECK(must && w[0] <= -0.125f * (float)((step + 1) * info.workers));
	}
	CHECK(rw_barrier(session, "end") == 0);
	run(&pull);
	for (int i = 0; i < ELEMS; i++)
		CHECK(w[i] == -0.125f * (float)(STEPS * info.workers));
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
