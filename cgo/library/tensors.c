#define _GNU_SOURCE
/* Adding tensors, and the worker once there is something to do. */
#include "library.h"
#include "../kernel/kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *serve(void *arg)
{
	rw_worker_serve(arg);
	return NULL;
}

/* Under the session's lock. */
static int open_worker(struct rw_session *s)
{
	const uint32_t local = s->cfg.local_workers ? s->cfg.local_workers : 1;
	struct rw_worker_nic nics[RW_MAX_NICS];
	struct rw_worker_config cfg = {
		.nnics = s->nnics,
		.nlanes = s->cfg.nlanes,
		.chunk_bytes = s->cfg.chunk_bytes,
		.window = s->cfg.window,
		.nstaging = s->nstaging,
		.staging = s->staging,
		.rank = s->cfg.rank,
		.cache_bytes = s->cfg.cache_bytes / local,
		.by_reference = s->cfg.by_reference,
		.any_memory = 1,
		.steps = s->cfg.steps,
		.isa = rwk_best(),
		.spin = s->cfg.spin,
	};
	rw_worker *w;
	int rc;

	for (uint32_t i = 0; i < s->nnics; i++) {
		nics[i] = (struct rw_worker_nic){s->nics[i].pd, s->nics[i].cq};
		cfg.any_memory = cfg.any_memory && s->nics[i].flags & RWF_DEV_ANY_MEMORY;
	}
	rc = rw_worker_open(&cfg, nics, s->lanes, &w);
	for (uint32_t i = 0; !rc && i < s->nmemory; i++)
		if (!s->memory[i].failed)
			rc = rw_worker_region(w, s->memory[i].mr);
	if (rc)
		return rc;
	__atomic_store_n(&s->worker, w, __ATOMIC_RELEASE);
	if (__atomic_load_n(&s->aborted, __ATOMIC_ACQUIRE))
		rw_worker_abort(w, s->reason);
	rc = thread_start(&s->thread, "rackweave", serve, w);
	s->threaded = !rc;
	return rc;
}

int rw_add(rw_session *s, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *chunk_lanes, uint64_t nchunks)
{
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (!s->connected)
		return rwf_fail(ENOTCONN, "add: the session is not connected: call rw_connect first");
	session_register(s);
	pthread_mutex_lock(&s->lock);
	rc = s->worker ? 0 : open_worker(s);
	if (!rc)
		rc = rw_worker_add(s->worker, tensors, ntensors, chunk_lanes, nchunks);
	for (uint32_t i = 0; !rc && s->cfg.live_hyper && i < ntensors; i++)
		rc = rw_worker_hyper(s->worker, s->ntensors + i, s->cfg.record);
	if (!rc)
		s->ntensors += ntensors;
	pthread_mutex_unlock(&s->lock);
	return rc;
}
