/* Opening a worker, and adding tensors to it. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int rw_worker_open(const struct rw_worker_config *cfg, const struct rw_worker_nic *nics, const struct rw_worker_lane *lanes,
		   rw_worker **out)
{
	struct rw_worker *w;
	int rc = 0;

	if (cfg->nlanes == 0 || cfg->nlanes > RW_MAX_LANES || cfg->window < RW_MIN_WINDOW || cfg->window > RW_MAX_WINDOW ||
	    cfg->nnics == 0 || cfg->nnics > RW_MAX_NICS || cfg->nstaging < 2 ||
	    (!cfg->by_reference && cfg->nstaging != cfg->window) || cfg->nstaging > RW_MAX_WINDOW)
		return rwf_fail(EINVAL,
				"open worker: %u lanes, %u NICs, window %u, %u staging buffers: want 1 to %d lanes, 1 to %d NICs, "
				"a window of %d to %d, as many buffers or, by reference, 2 or more",
				cfg->nlanes, cfg->nnics, cfg->window, cfg->nstaging, RW_MAX_LANES, RW_MAX_NICS, RW_MIN_WINDOW,
				RW_MAX_WINDOW);
	w = calloc(1, sizeof *w);
	if (!w)
		return -ENOMEM;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	w->cfg = *cfg;
	for (uint32_t i = 0; i < cfg->nnics; i++)
		w->nics[i].cfg = nics[i];
	w->finished_cap = 1;
	w->finished = calloc(1, sizeof *w->finished);
	w->lanes = calloc(cfg->nlanes, sizeof *w->lanes);
	if (!w->lanes || !w->finished)
		rc = -ENOMEM;
	for (uint32_t i = 0; !rc && i < cfg->nlanes; i++)
		rc = lane_init(w, i, &lanes[i]);
	if (rc) {
		rw_worker_close(w);
		return rc;
	}
	*out = w;
	return 0;
}

void rw_worker_close(rw_worker *w)
{
	if (!w)
		return;
	for (uint32_t i = 0; i < w->ntensors; i++) {
		struct region *own[] = {w->tensors[i].auto_src, w->tensors[i].auto_dst};

		for (int k = 0; k < 2; k++) {
			if (own[k])
				region_forget(w, own[k]);
			free(own[k]);
		}
	}
	for (struct region *r = w->regions, *next; r; r = next) {
		next = r->next;
		free(r);
	}
	for (uint32_t i = 0; w->lanes && i < w->cfg.nlanes; i++)
		lane_free(&w->lanes[i]);
	free(w->lanes);
	free(w->tensors);
	free(w->part_index);
	free(w->finished);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->cond);
	free(w);
}

static int add_chunks(struct rw_worker *w, struct lane *l, const struct rw_chunk_desc *c, uint32_t n)
{
	uint32_t lane = (uint32_t)(l - w->lanes), parts = 0;

	if ((uint64_t)l->nchunks + n > RW_GUEST_BIT)
		return rwf_fail(EINVAL, "add tensors: lane %u would have more than %u chunks: use larger chunks", lane,
				RW_GUEST_BIT);
	for (uint32_t i = 0; i < n; i++)
		parts += i == 0 || c[i].tensor != c[i - 1].tensor;
	if (n == 0)
		return 0;
	if (queue_reserve(l, l->nchunks + l->nguests + n) || grow(&l->chunks, l->nchunks + n, sizeof *l->chunks) ||
	    grow(&l->parts, l->nparts + parts, sizeof *l->parts) || grow(&l->heap, l->nparts + parts, sizeof *l->heap) ||
	    grow(&l->homes, l->nhomes + parts, sizeof *l->homes))
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		if (i == 0 || c[i].tensor != c[i - 1].tensor) {
			w->part_index[w->tensors[c[i].tensor].first_part + lane] = l->nparts;
			l->parts[l->nparts] = (struct part){
				.tensor = c[i].tensor, .first = l->nchunks, .name = l->nhomes, .guests = NONE, .heap_at = NONE};
			l->homes[l->nhomes++] = l->nparts++;
		}
		l->parts[l->nparts - 1].count++;
		l->chunks[l->nchunks++] = (struct chunk){.offset = c[i].offset, .elems = c[i].elems, .part = l->nparts - 1};
	}
	return 0;
}

static int add(rw_worker *w, const struct rw_tensor_desc *tensors, uint32_t ntensors, const struct rw_chunk_desc *chunks,
	       const uint32_t *nchunks)
{
	uint32_t nlanes = w->cfg.nlanes, total = w->ntensors + ntensors;
	struct finished *finished;

	finished = calloc((size_t)total + 1, sizeof *finished);
	if (!finished || grow(&w->tensors, total, sizeof *w->tensors) ||
	    grow(&w->part_index, (size_t)total * nlanes, sizeof *w->part_index)) {
		free(finished);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < w->finished_count; i++)
		finished[i] = w->finished[(w->finished_head + i) % w->finished_cap];
	free(w->finished);
	w->finished = finished;
	w->finished_head = 0;
	w->finished_cap = total + 1;
	for (uint32_t i = 0; i < ntensors; i++) {
		struct tensor *t = &w->tensors[w->ntensors + i];

		*t = (struct tensor){.elems = tensors[i].elems,
				     .wire_type = tensors[i].wire_type,
				     .memory_type = tensors[i].memory_type,
				     .first_part = (w->ntensors + i) * nlanes};
		for (uint32_t lane = 0; lane < nlanes; lane++)
			w->part_index[t->first_part + lane] = NONE;
		w->model_bytes += tensors[i].elems * 4;
	}
	for (uint32_t i = 0; i < nlanes; chunks += nchunks[i++]) {
		int rc = add_chunks(w, &w->lanes[i], chunks, nchunks[i]);

		if (rc)
			return rc;
	}
	w->ntensors = total;
	return 0;
}

int rw_worker_add(rw_worker *w, const struct rw_tensor_desc *tensors, uint32_t ntensors, const struct rw_chunk_desc *chunks,
		  const uint32_t *nchunks)
{
	int rc;

	enter(w);
	rc = add(w, tensors, ntensors, chunks, nchunks);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void mark_records(struct rw_worker *w, struct tensor *t)
{
	t->recorded = 1;
	for (uint32_t lane = 0; lane < w->cfg.nlanes; lane++) {
		struct part *p = part_of(w, t, lane);

		if (p)
			p->record_dirty = 1;
	}
}

void set_hyper(struct rw_worker *w, struct tensor *t, const float hyper[RW_HYPERS])
{
	if (memcmp(t->hyper, hyper, sizeof t->hyper) == 0)
		return;
	memcpy(t->hyper, hyper, sizeof t->hyper);
	mark_records(w, t);
}

int rw_worker_hyper(rw_worker *w, uint32_t tensor, const float hyper[RW_HYPERS])
{
	int rc = 0;

	enter(w);
	if (w->tensors[tensor].active)
		rc = rwf_fail(EBUSY, "set hyper-parameters: tensor %u is being exchanged", tensor);
	else
		set_hyper(w, &w->tensors[tensor], hyper);
	pthread_mutex_unlock(&w->lock);
	return rc;
}
