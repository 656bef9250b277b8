/* Prints what the library finds out about the machine: the kernels' instruction set, and the cache in bytes. */
#include "check.h"

int main(void)
{
	const uint32_t nics[] = {0};
	const struct rw_config cfg = {.size = sizeof cfg,
				      .provider = "shm",
				      .lane_nics = nics,
				      .nlanes = 1,
				      .chunk_bytes = 32768,
				      .window = 4,
				      .send_depth = 8,
				      .recv_depth = 8};
	struct rw_info info = {.size = sizeof info};
	rw_session *session;

	CHECK(rw_open(&cfg, &session) == 0);
	CHECK(rw_query(session, &info) == 0);
	CHECK(rw_close(session) == 0);
	printf("%u %llu\n", info.isa, (unsigned long long)info.cache_bytes);
	return 0;
}
