/* Codecs: what they leave out comes later, and a tensor can do without them again. */
#include "check.h"

#include <errno.h>

enum { ELEMS = 20000, STEPS = 4, WAIT_MS = 30000 };

static rw_session *session;
static float sum[ELEMS], g[ELEMS], left[ELEMS];

static void pushpull(void)
{
	const struct rw_op op = {.size = sizeof op, .kind = RW_PUSHPULL, .src = g, .dst = sum};
	uint64_t handle;

	CHECK(rw_submit(session, &op, 1, &handle) == 1);
	CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0);
}

static struct rw_stats stats(void)
{
	struct rw_stats s = {.size = sizeof s};

	CHECK(rw_stats(session, &s) == 0);
	return s;
}

int main(int argc, char **argv)
{
	struct rw_job job = {.size = sizeof job, .timeout_ms = WAIT_MS, .compress = "zip"};
	const uint64_t elems = ELEMS;
	const struct rw_parameter p = vector(&elems);
	const struct rw_codec none = {.size = sizeof none}, unknown = {.size = sizeof unknown, .id = 99};
	struct rw_info info = {.size = sizeof info};
	struct rw_stats s;

	job.provider = argc > 1 ? argv[1] : NULL;
	CHECK(rw_join(&job, &session) < 0 && strstr(rw_error(), "zip"));
	job.compress = "2bit:0.5/int8";
	CHECK(rw_join(&job, &session) == 0 && rw_register(session, &p, 1) == 0);
	CHECK(rw_query(session, &info) == 0);
	for (int i = 0; i < ELEMS; i++)
		g[i] = 0.25f;
	for (int step = 0; step < STEPS; step++) { /* every second time the threshold is reached */
		pushpull();
		for (int i = 0; i < ELEMS; i++)
			CHECK(sum[i] == (step % 2 ? 0.5f * (float)info.workers : 0));
	}
	s = stats();
	CHECK(s.sent_raw_bytes == STEPS * sizeof g && s.sent_bytes < s.sent_raw_bytes / 12 && s.residual == 0);
	CHECK(s.received_raw_bytes == STEPS * sizeof g && s.received_bytes < s.received_raw_bytes / 3);

	pushpull();
	CHECK(rw_residual(session, 0, left, 0) == 0 && left[7] == 0.25f && stats().residual == ELEMS / 16);
	left[7] = 0; /* as another session would go on with what is left */
	CHECK(rw_residual(session, 0, left, 1) == 0 && rw_residual(session, 1, left, 1) == -ENOENT);
	pushpull();
	CHECK(sum[7] == 0 && sum[ELEMS - 1] == 0.5f * (float)info.workers);
	left[7] = left[8] = 0;
	CHECK(rw_residual(session, 0, left, 0) == 0 && left[7] == 0.25f && left[8] == 0);
	left[7] = 0;
	CHECK(rw_residual(session, 0, left, 1) == 0);

	pushpull();
	CHECK(rw_compress(session, 0, &unknown) == -EINVAL && rw_compress(session, 1, &none) == -EINVAL);
	CHECK(rw_compress(session, 0, &none) == 0);
	pushpull(); /* sends what is left along */
	CHECK(sum[1] == 0.5f * (float)info.workers && stats().residual == 0);
	pushpull();
	CHECK(sum[1] == 0.25f * (float)info.workers);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
