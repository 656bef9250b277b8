/* A session: devices, memory and queue pairs of a worker, as rackweave.h describes them. */
#include "../kernel/kernel.h"
#include "library.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* By reference few buffers are enough. Each sparse tensor needs four of them. Otherwise every slot has one. */
enum { STAGING_BY_REFERENCE = 128 };

uint32_t rw_abi_version(void)
{
	return RW_ABI_VERSION;
}

const char *rw_error(void)
{
	return rwf_last_error();
}

int session_usable(const struct rw_session *s)
{
	return s->owner == getpid()
		       ? 0
		       : rwf_fail(-RW_EFORKED,
				  "this process is a forked child of the one that opened the session: open another in it");
}

int explain(rw_worker *w, int rc)
{
	char text[256];

	if (rc == RW_EABORTED || rc == RW_ETRANSPORT || rc == RW_EPROTOCOL) {
		rw_worker_failure(w, text, sizeof text);
		rwf_fail(-rc, "%s", text);
	}
	return rc;
}

static int check(const struct rw_config *c)
{
	if (c->size < sizeof *c)
		return rwf_fail(EINVAL, "open: the config's size is %u: set it to sizeof(struct rw_config), %zu", c->size,
				sizeof *c);
	if (!c->provider)
		return rwf_fail(EINVAL, "open: no provider: name the one that Join answered");
	if (c->nlanes == 0 || c->nlanes > RW_MAX_LANES || c->window < RW_MIN_WINDOW || c->window > RW_MAX_WINDOW)
		return rwf_fail(EINVAL, "open: %u lanes and a window of %u: use 1 to %d and 2 to %d", c->nlanes, c->window,
				RW_MAX_LANES, RW_MAX_WINDOW);
	if (c->recv_depth < c->window || c->send_depth < c->window)
		return rwf_fail(EINVAL, "open: queues of %u sends and %u receives for a window of %u: use what Join answered",
				c->send_depth, c->recv_depth, c->window);
	if (c->chunk_bytes < RW_RECORD_BYTES || (c->chunk_bytes & (c->chunk_bytes - 1)) || !c->lane_nics)
		return rwf_fail(EINVAL, "open: chunks of %u bytes, lanes' NICs %s: use what Join answered", c->chunk_bytes,
				c->lane_nics ? "given" : "not given");
	return 0;
}

/* Reports whether all devices reach any memory. */
static uint8_t any_memory(const struct rw_session *s)
{
	for (uint32_t i = 0; i < s->nnics; i++)
		if (!(s->nics[i].flags & RWF_DEV_ANY_MEMORY))
			return 0;
	return 1;
}

static int open_worker(struct rw_session *s)
{
	const uint32_t local = s->cfg.local_workers ? s->cfg.local_workers : 1;
	struct rw_worker_nic nics[RW_MAX_NICS];
	const struct rw_worker_config cfg = {
		.nnics = s->nnics,
		.nlanes = s->cfg.nlanes,
		.chunk_bytes = s->cfg.chunk_bytes,
		.window = s->cfg.window,
		.send_depth = s->cfg.send_depth,
		.nstaging = s->nstaging,
		.staging = s->staging,
		.rank = s->cfg.rank,
		.cache_bytes = s->cfg.cache_bytes / local,
		.by_reference = s->cfg.by_reference,
		.any_memory = any_memory(s),
		.steps = s->cfg.steps,
		.answers = s->cfg.answers,
		.isa = rwk_best(),
		.spin = s->cfg.spin,
	};

	for (uint32_t i = 0; i < s->nnics; i++)
		nics[i] = (struct rw_worker_nic){s->nics[i].pd, s->nics[i].cq};
	return rw_worker_open(&cfg, nics, &s->worker);
}

static void *serve(void *arg)
{
	rw_worker_serve(arg);
	return NULL;
}

static int set_up(struct rw_session *s)
{
	int rc = nics_open(&s->cfg, s->nics, &s->nnics, s->lanes);

	s->nstaging = s->cfg.by_reference && s->cfg.window > STAGING_BY_REFERENCE ? STAGING_BY_REFERENCE : s->cfg.window;
	if (!rc)
		rc = rw_alloc((size_t)s->cfg.nlanes * s->nstaging * s->cfg.chunk_bytes, &s->staging);
	if (!rc)
		rc = open_worker(s);
	if (!rc) {
		session_register(s);
		if (!session_memory(s, s->staging))
			rc = rwf_fail(ENOMEM, "open: staging buffers: %s", rwf_last_error());
	}
	if (!rc) {
		rc = thread_start(&s->thread, "rackweave", serve, s->worker);
		s->threaded = !rc;
	}
	return rc;
}

void session_free(struct rw_session *s)
{
	if (s->threaded) {
		rw_worker_stop(s->worker);
		pthread_join(s->thread, NULL);
	}
	rw_worker_close(s->worker);
	for (uint32_t i = 0; s->lanes && i < s->cfg.nlanes; i++)
		if (s->lanes[i].qp)
			rwf_destroy_qp(s->lanes[i].qp);
	for (uint32_t i = 0; i < s->nmemory; i++)
		for (uint32_t nic = 0; nic < s->nnics && !s->memory[i].failed; nic++)
			rwf_dereg_mr(s->nics[nic].pd, s->memory[i].mr[nic].lkey);
	rw_free(s->staging);
	nics_close(s->nics, s->nnics);
	if (s->cancel >= 0)
		close(s->cancel);
	pthread_mutex_destroy(&s->control_lock);
	pthread_mutex_destroy(&s->lock);
	free(s->trace);
	free(s->memory);
	free(s->lanes);
	free(s);
}

int rw_open(const struct rw_config *config, rw_session **session)
{
	struct rw_session *s;
	int rc = check(config);

	if (rc)
		return rc;
	s = calloc(1, sizeof *s);
	if (!s)
		return rwf_fail(ENOMEM, "open: out of memory");
	pthread_mutex_init(&s->lock, NULL);
	s->owner = getpid();
	s->cfg = *config;
	if (!s->cfg.cache_bytes)
		s->cfg.cache_bytes = last_level_cache();
	pthread_mutex_init(&s->control_lock, NULL);
	s->control = s->codecs = -1;
	s->cancel = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->lanes = calloc(s->cfg.nlanes, sizeof *s->lanes);
	rc = s->cancel < 0 || !s->lanes ? rwf_fail(ENOMEM, "open: no memory, or no file descriptor: %s", strerror(errno))
					: set_up(s);
	s->cfg.devices = NULL;
	s->cfg.provider = s->cfg.options = NULL;
	s->cfg.lane_nics = NULL;
	if (rc) {
		char why[256];

		snprintf(why, sizeof why, "%s", rwf_last_error());
		session_free(s);
		return rwf_fail(-rc, "%s", why);
	}
	*session = s;
	return 0;
}

int rw_query(rw_session *s, struct rw_info *out)
{
	struct rw_info now = {
		.size = out->size, .rank = s->cfg.rank, .nlanes = s->cfg.nlanes, .nnics = s->nnics, .any_memory = any_memory(s)};
	int rc = session_usable(s);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->lock);
	now.tensors = s->ntensors;
	now.workers = s->workers;
	now.cache_bytes = s->cfg.cache_bytes;
	now.isa = (uint32_t)rwk_best();
	pthread_mutex_unlock(&s->lock);
	memcpy(out, &now, out->size < sizeof now ? out->size : sizeof now);
	return 0;
}
