/* Memory that the transport reaches itself: what the caller registered, and what is registered on the fly. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void take_keys(struct region *r, uint32_t nic, const struct rwf_mr *mr)
{
	r->addr = mr->addr;
	r->length = mr->length;
	r->lkey[nic] = mr->lkey;
	r->rkey[nic] = mr->rkey;
}

void region_keys(const struct rw_worker *w, struct region *r, const struct rwf_mr *mrs)
{
	for (uint32_t i = 0; i < w->cfg.nnics; i++)
		take_keys(r, i, &mrs[i]);
}

static void deregister(struct rw_worker *w, struct region *r, uint32_t nics)
{
	for (uint32_t i = 0; i < nics; i++)
		rwf_dereg_mr(w->nics[i].cfg.pd, r->lkey[i]);
	memset(r, 0, sizeof *r);
}

void region_forget(struct rw_worker *w, struct region *r)
{
	if (r->length)
		deregister(w, r, w->cfg.nnics);
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
	struct region *r;

	if (given || !w->cfg.any_memory)
		return given;
	if (!*cached)
		*cached = calloc(1, sizeof **cached);
	r = *cached;
	if (!r || (r->length == bytes && r->addr == (uintptr_t)p))
		return r;
	region_forget(w, r);
	for (uint32_t i = 0; i < w->cfg.nnics; i++) {
		struct rwf_mr mr;

		if (rwf_reg_mr(w->nics[i].cfg.pd, (void *)(uintptr_t)p, bytes, RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE, -1,
			       0, &mr)) {
			deregister(w, r, i);
			return NULL;
		}
		take_keys(r, i, &mr);
	}
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

	if (forked(w))
		return RW_EFORKED;
	if (nic >= w->cfg.nnics)
		return rwf_fail(EINVAL, "list memory for NIC %u of %u", nic, w->cfg.nnics);
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
