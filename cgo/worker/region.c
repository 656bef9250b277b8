/* Memory that the transport reaches directly: regions of the caller, and regions registered on the fly. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct region *new_region(struct rw_worker *w, uint8_t own)
{
	struct region *r = calloc(1, sizeof *r);

	if (r) {
		*r = (struct region){.next = w->regions, .own = own};
		w->regions = r;
	}
	return r;
}

static const struct region *region_of(const struct rw_worker *w, const void *p, uint64_t bytes)
{
	uint64_t addr = (uintptr_t)p;

	for (const struct region *r = w->regions; r; r = r->next)
		if (!r->own && addr >= r->mrs->addr && addr - r->mrs->addr <= r->mrs->length &&
		    bytes <= r->mrs->length - (addr - r->mrs->addr))
			return r;
	return NULL;
}

int rw_worker_region(rw_worker *w, const struct rwf_mr *mrs)
{
	struct region *r;

	enter(w);
	for (r = w->regions; r && (r->own || r->mrs->length); r = r->next)
		;
	if (!r)
		r = new_region(w, 0);
	if (r)
		memcpy(r->mrs, mrs, w->cfg.nnics * sizeof *mrs);
	w->staging = region_of(w, w->cfg.staging, staging_bytes(w));
	pthread_mutex_unlock(&w->lock);
	return r ? 0 : -ENOMEM;
}

void rw_worker_forget(rw_worker *w, uint64_t addr)
{
	enter(w);
	for (struct region *r = w->regions; r; r = r->next)
		if (!r->own && r->mrs->addr == addr)
			r->mrs->length = 0; /* tensors may point to the struct */
	pthread_mutex_unlock(&w->lock);
}

void region_forget(struct rw_worker *w, struct region *r)
{
	for (uint32_t i = 0; r->own && r->mrs->length && i < w->cfg.nnics; i++)
		rwf_dereg_mr(w->nics[i].cfg.pd, r->mrs[i].lkey);
	r->mrs->length = 0;
}

const struct region *region_reach(struct rw_worker *w, const void *p, uint64_t bytes, struct region **cached)
{
	const struct region *given = region_of(w, p, bytes);
	struct rwf_mr mrs[RW_MAX_NICS];
	struct region *r;

	if (given || !w->cfg.any_memory)
		return given;
	if (!*cached)
		*cached = new_region(w, 1);
	r = *cached;
	if (!r || (r->mrs->length == bytes && r->mrs->addr == (uintptr_t)p))
		return r;
	region_forget(w, r);
	for (uint32_t i = 0; i < w->cfg.nnics; i++)
		if (rwf_reg_mr(w->nics[i].cfg.pd, (void *)(uintptr_t)p, bytes, RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE, -1,
			       0, &mrs[i])) {
			while (i-- > 0)
				rwf_dereg_mr(w->nics[i].cfg.pd, mrs[i].lkey);
			return NULL;
		}
	memcpy(r->mrs, mrs, w->cfg.nnics * sizeof *mrs);
	return r;
}

int rw_worker_regions(rw_worker *w, uint32_t nic, struct rwf_mr *mrs, uint32_t cap)
{
	uint32_t n = 0;

	enter(w);
	for (const struct region *r = w->regions; r; r = r->next) {
		if (!r->mrs->length)
			continue;
		if (n < cap)
			mrs[n] = r->mrs[nic];
		n++;
	}
	pthread_mutex_unlock(&w->lock);
	return (int)n;
}
