#define _GNU_SOURCE
/* Adding tensors: their chunks by lane, and the worker once there is something to do. */
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
	const struct registered *staging = session_memory(s, s->staging);
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
		nics[i] = (struct rw_worker_nic){s->nics[i].pd, s->nics[i].cq, staging->mr[i].lkey, staging->mr[i].rkey};
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

struct cut {
	struct rw_tensor_desc *tensors;
	struct rw_chunk_desc *chunks; /* lane by lane */
	uint32_t counts[RW_MAX_LANES];
};

static uint64_t elems_per_chunk(const struct rw_session *s, uint8_t type)
{
	return s->cfg.chunk_bytes / (type == RW_F32 ? 4 : 2);
}

static int check_tensors(const struct rw_session *s, const struct rw_tensor *t, uint32_t n, const uint32_t *lanes, uint64_t nchunks)
{
	uint64_t want = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (t[i].size != sizeof *t)
			return rwf_fail(EINVAL, "add: tensor %u has size %u: set it to sizeof(struct rw_tensor), %zu", i, t[i].size,
					sizeof *t);
		if (t[i].wire_type < RW_F32 || t[i].wire_type > RW_F16 || t[i].memory_type < RW_F32 || t[i].memory_type > RW_F16 ||
		    !t[i].elems)
			return rwf_fail(EINVAL, "add: tensor %u has %llu elements of type %u, %u in memory: use enum rw_type", i,
					(unsigned long long)t[i].elems, t[i].wire_type, t[i].memory_type);
		want += (t[i].elems - 1) / elems_per_chunk(s, t[i].wire_type) + 1;
	}
	if (want != nchunks)
		return rwf_fail(EINVAL, "add: %u tensors in %llu chunks, lanes given for %llu: pass what Register answered", n,
				(unsigned long long)want, (unsigned long long)nchunks);
	for (uint64_t i = 0; i < nchunks; i++)
		if (lanes[i] >= s->cfg.nlanes)
			return rwf_fail(EINVAL, "add: chunk %llu on lane %u of %u", (unsigned long long)i, lanes[i], s->cfg.nlanes);
	return 0;
}

/* Cuts tensors into chunks and sorts these by lane. */
static int cut(const struct rw_session *s, const struct rw_tensor *t, uint32_t n, const uint32_t *lanes, uint64_t nchunks,
	       struct cut *c)
{
	struct rw_chunk_desc *next[RW_MAX_LANES];

	*c = (struct cut){.tensors = calloc(n ? n : 1, sizeof *c->tensors),
			  .chunks = calloc(nchunks ? nchunks : 1, sizeof *c->chunks)};
	if (!c->tensors || !c->chunks)
		return rwf_fail(ENOMEM, "add: no memory for %u tensors", n);
	for (uint64_t i = 0; i < nchunks; i++)
		c->counts[lanes[i]]++;
	for (uint32_t i = 0; i < s->cfg.nlanes; i++)
		next[i] = i ? next[i - 1] + c->counts[i - 1] : c->chunks;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t most = elems_per_chunk(s, t[i].wire_type);

		c->tensors[i] = (struct rw_tensor_desc){t[i].elems, t[i].wire_type, t[i].memory_type};
		for (uint64_t at = 0; at < t[i].elems; at += most) {
			uint64_t left = t[i].elems - at;

			*next[*lanes++]++ = (struct rw_chunk_desc){at, s->ntensors + i, (uint32_t)(left < most ? left : most)};
		}
	}
	return 0;
}

static int add(struct rw_session *s, const struct cut *c, uint32_t n)
{
	int rc = s->worker ? 0 : open_worker(s);

	if (!rc)
		rc = rw_worker_add(s->worker, c->tensors, n, c->chunks, c->counts);
	for (uint32_t i = 0; !rc && s->cfg.live_hyper && i < n; i++)
		rc = rw_worker_hyper(s->worker, s->ntensors + i, s->cfg.record);
	if (!rc)
		s->ntensors += n;
	return rc;
}

int rw_add(rw_session *s, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *chunk_lanes, uint64_t nchunks)
{
	struct cut c = {0};
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (!s->connected)
		return rwf_fail(ENOTCONN, "add: the session is not connected: call rw_connect first");
	session_register(s);
	pthread_mutex_lock(&s->lock);
	rc = check_tensors(s, tensors, ntensors, chunk_lanes, nchunks);
	if (!rc)
		rc = cut(s, tensors, ntensors, chunk_lanes, nchunks, &c);
	if (!rc)
		rc = add(s, &c, ntensors);
	pthread_mutex_unlock(&s->lock);
	free(c.tensors);
	free(c.chunks);
	return rc;
}
