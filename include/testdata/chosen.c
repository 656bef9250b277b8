/* The aggregator changes the codecs of a job that runs, and all workers follow in the same step. */
#include "check.h"

enum { ELEMS = 50000, STEPS = 20000, LAST = 6, WAIT_MS = 30000 };

static float sum[ELEMS], g[ELEMS];

int main(int argc, char **argv)
{
	struct rw_job job = {.size = sizeof job, .timeout_ms = WAIT_MS, .provider = "tcp"};
	const uint64_t elems = ELEMS;
	const struct rw_parameter p = vector(&elems);
	const struct rw_op op = {.size = sizeof op, .kind = RW_PUSHPULL, .src = g, .dst = sum};
	struct rw_stats before = {.size = sizeof before}, now = {.size = sizeof now};
	struct rw_info info = {.size = sizeof info};
	uint64_t handle, sent, raw;
	rw_session *session;
	int step, run = 0;

	job.compress = argc > 1 ? argv[1] : NULL;
	CHECK(rw_join(&job, &session) == 0 && rw_register(session, &p, 1) == 0 && rw_query(session, &info) == 0);
	for (int i = 0; i < ELEMS; i++)
		g[i] = (float)(i % (LAST + 1)); /* which all these codecs keep */
	for (step = 0; step < STEPS && sum[0] < LAST * (float)info.workers; step++) {
		g[0] = run < 20 ? 0 : LAST; /* all workers end in the step in which the last one may */
		CHECK(rw_stats(session, &before) == 0 && rw_submit(session, &op, 1, &handle) == 1);
		CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0 && rw_stats(session, &now) == 0);
		for (int i = 1; i < ELEMS; i++)
			CHECK(sum[i] == g[i] * (float)info.workers);
		sent = now.sent_bytes - before.sent_bytes;
		raw = now.sent_raw_bytes - before.sent_raw_bytes; /* chunks that are sent again count in both */
		CHECK(sent < raw / 3);
		run = sent < raw / 7 ? run + 1 : 0; /* int4 after int8, which returns where a decision is withdrawn */
	}
	CHECK(run > 20);
	printf("changed in step %d\n", step - run);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
