/* Rank 1 dies in the middle of an exchange; the others are told within the time that the test gives them. */
#include "check.h"

#include <unistd.h>

int main(void)
{
	struct rw_job job = {.size = sizeof job, .timeout_ms = 30000};
	const uint64_t elems = 1000;
	struct rw_parameter p = vector(&elems);
	struct rw_info info = {.size = sizeof info};
	static float w[1000];
	struct rw_op op = {.size = sizeof op, .src = w, .dst = w, .kind = RW_PUSHPULL};
	rw_session *session;
	uint64_t handle;
	char why[256];
	int rc;

	CHECK(rw_join(&job, &session) == 0);
	CHECK(rw_register(session, &p, 1) == 0);
	CHECK(rw_query(session, &info) == 0);
	if (info.rank == 1) {
		usleep(200000);
		_exit(0);
	}
	CHECK(rw_submit(session, &op, 1, &handle) == 1);
	rc = rw_wait_all(session, &handle, 1, 20000);
	CHECK(rc == RW_EABORTED || rc == RW_ETRANSPORT);
	CHECK(rw_failure(session, why, sizeof why) == rc && why[0]);
	CHECK(rw_submit(session, &op, 1, &handle) == rc && strcmp(rw_error(), why) == 0);
	CHECK(rw_close(session) == 0);
	printf("ok: %s\n", why);
	return 0;
}
