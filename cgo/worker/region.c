/* Memory that the transport reaches directly: regions of the caller, and regions registered on the fly. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

static void set_keys(const struct rw_worker *w, struct region *r, const struct rwf_mr *mrs)
{
	r->addr = mrs[0].addr;
	r->length = mrs[0].length;
	for (uint32_t i = 0; i < w->cfg.nnics; i++) {
		r->lkey[i] = mrs[i].lkey;
		r->rkey[i] = mrs[i].rkey;
	}
}

int rw_worker_region(rw_worker *w, const struct rwf_mr *mrs)
{
	struct region *r;

	enter(w);
	for (r = w->regions; r && r->length; r = r->next)
		;
	if (!r && (r = calloc(1, sizeof *r))) {
		r->next = w->regions;
		w->regions = r;
	}
	if (r)
		set_keys(w, r, mrs);
	pthread_mutex_unlock(&w->lock);
	return r ? 0 : -ENOMEM;
}

void rw_worker_forget(rw_worker *w, uint64_t addr)
{
	enter(w);
	for (struct region *r = w->regions; r; r = r->next)
		if (r->addr == addr)
			r->length = 0; /* tensors may point to the struct */
	pthread_mutex_unlock(&w->lock);
}

void region_forget(struct rw_worker *w, struct region *r)
{
	for (uint32_t i = 0; r->length && i < w->cfg.nnics; i++)
		rwf_dereg_mr(w->nics[i].cfg.pd, r->lkey[i]);
	r->length = 0;
}

static const struct region *region_of(const struct rw_worker *w, const void *p, uint64_t bytes)
{
	uint64_t addr = (uintptr_t)p;

	for (const struct region *r = w->regions; r; r = r->next)
		if (addr >= r->addr && addr - r->addr <= r->length && bytes <= r->length - (addr - r->addr))
			return r;
	return NULL;
}

const struct region *region_reach(struct rw_worker *w, const void *p, uint64_t bytes, struct region **cached)
{
	const struct region *given = region_of(w, p, bytes);
	struct rwf_mr mrs[RW_MAX_NICS];
	struct region *r;

	if (given || !w->cfg.any_memory)
		return given;
	if (!*cached)
		*cached = calloc(1, sizeof **cached);
	r = *cached;
	if (!r || (r->length == bytes && r->addr == (uintptr_t)p))
		return r;
	region_forget(w, r);
	for (uint32_t i = 0; i < w->cfg.nnics; i++)
		if (rwf_reg_mr(w->nics[i].cfg.pd, (void *)(uintptr_t)p, bytes, RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE, -1,
			       0, &mrs[i])) {
			while (i-- > 0)
				rwf_dereg_mr(w->nics[i].cfg.pd, mrs[i].lkey);
			return NULL;
		}
	set_keys(w, r, mrs);
	return r;
}

static int list_region(const struct region *r, uint32_t nic, struct rwf_mr *mrs, uint32_t cap, int n)
{
	if (!r || !r->length)
		return n;
	if ((uint32_t)n < cap)
		mrs[n] = (struct rwf_mr){r->addr, r->length, r->lkey[nic], r->rkey[nic]};
	return n + 1;
}

int rw_worker_regions(rw_worker *w, uint32_t nic, struct rwf_mr *mrs, uint32_t cap)
{
	const uint64_t staging_bytes = (uint64_t)w->cfg.nlanes * w->cfg.nstaging * w->cfg.chunk_bytes;
	struct region staging = {.addr = (uintptr_t)w->cfg.staging, .length = staging_bytes};
	int n;

	enter(w);
	staging.lkey[nic] = w->nics[nic].cfg.staging_lkey;
	staging.rkey[nic] = w->nics[nic].cfg.staging_rkey;
	n = list_region(&staging, nic, mrs, cap, 0);
	for (const struct region *r = w->regions; r; r = r->next)
		n = list_region(r, nic, mrs, cap, n);
	for (uint32_t i = 0; i < w->ntensors; i++) {
		n = list_region(w->tensors[i].auto_src, nic, mrs, cap, n);
		n = list_region(w->tensors[i].auto_dst, nic, mrs, cap, n);
	}
	pthread_mutex_unlock(&w->lock);
	return n;
}
