/* Opening a worker, and adding tensors to it. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int rw_worker_open(const struct rw_worker_config *cfg, const struct rw_worker_nic *nics, rw_worker **out)
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
	w->finished_head = NONE;
	w->lanes = calloc(cfg->nlanes, sizeof *w->lanes);
	if (!w->lanes)
		rc = -ENOMEM;
	for (uint32_t i = 0; !rc && i < cfg->nlanes; i++)
		rc = lane_init(w, i);
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
	for (struct region *r = w->regions, *next; r; r = next) {
		next = r->next;
		region_forget(w, r);
		free(r);
	}
	for (uint32_t i = 0; w->lanes && i < w->cfg.nlanes; i++)
		lane_free(&w->lanes[i]);
	free(w->lanes);
	for (uint32_t i = 0; i < w->ntensors; i++) {
		coding_free(&w->tensors[i]);
		free(w->tensors[i].rows);
	}
	free(w->tensors);
	free(w->parts);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->cond);
	free(w);
}

static uint64_t elems_per_chunk(const struct rw_worker *w, const struct rw_tensor *t)
{
	uint64_t n = w->cfg.chunk_bytes / type_size(t->wire_type);

	return t->width ? n - n % t->width : n;
}

static uint64_t chunks_of(const struct rw_worker *w, const struct rw_tensor *t)
{
	return (t->elems - 1) / elems_per_chunk(w, t) + 1;
}

static int is_type(uint8_t type)
{
	return type >= RW_F32 && type <= RW_F16;
}

/* Checks the rows of sparse tensor i. */
static int check_rows(const struct rw_worker *w, const struct rw_tensor *t, uint32_t i)
{
	uint64_t row = (uint64_t)t->width * type_size(t->wire_type);

	if (row + RW_ROW_BYTES > w->cfg.chunk_bytes)
		return rwf_fail(EINVAL,
				"add: sparse tensor %u: rows of %llu bytes and %d more do not fit a chunk of %u: use larger chunks "
				"or narrower rows",
				i, (unsigned long long)row, RW_ROW_BYTES, w->cfg.chunk_bytes);
	if (t->elems % t->width || t->elems / t->width > UINT32_MAX)
		return rwf_fail(EINVAL, "add: sparse tensor %u of %llu elements has rows of %u: use whole rows, at most %u", i,
				(unsigned long long)t->elems, t->width, UINT32_MAX);
	return 0;
}

/* Checks tensors, and counts their chunks by lane. */
static int check(const struct rw_worker *w, const struct rw_tensor *t, uint32_t n, const uint32_t *lanes, uint64_t nchunks,
		 uint32_t counts[RW_MAX_LANES])
{
	uint32_t sparse = w->nsparse;
	uint64_t want = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (t[i].size != sizeof *t)
			return rwf_fail(EINVAL, "add: tensor %u has size %u: set it to sizeof(struct rw_tensor), %zu", i, t[i].size,
					sizeof *t);
		if (!is_type(t[i].wire_type) || !is_type(t[i].memory_type) || !t[i].elems)
			return rwf_fail(EINVAL, "add: tensor %u has %llu elements of type %u, %u in memory: use enum rw_type", i,
					(unsigned long long)t[i].elems, t[i].wire_type, t[i].memory_type);
		if (t[i].width && check_rows(w, &t[i], i))
			return -EINVAL;
		if (t[i].width && ++sparse > w->cfg.nstaging / 4)
			return rwf_fail(EINVAL, "add: %u sparse tensors: use at most %u in a session, or one for several tables",
					sparse, w->cfg.nstaging / 4);
		want += chunks_of(w, &t[i]);
	}
	if (want != nchunks)
		return rwf_fail(EINVAL, "add: %u tensors in %llu chunks, lanes given for %llu: pass what Register answered", n,
				(unsigned long long)want, (unsigned long long)nchunks);
	for (uint64_t i = 0; i < nchunks; i++) {
		if (lanes[i] >= w->cfg.nlanes)
			return rwf_fail(EINVAL, "add: chunk %llu on lane %u of %u", (unsigned long long)i, lanes[i], w->cfg.nlanes);
		if (w->lanes[lanes[i]].nchunks + ++counts[lanes[i]] > RW_MAX_LANE_CHUNKS)
			return rwf_fail(EINVAL, "add: lane %u would have more than %u chunks: use larger chunks", lanes[i],
					RW_MAX_LANE_CHUNKS);
	}
	return 0;
}

/* Makes room in a lane for so many more chunks, and for all tensors. */
static int reserve(struct lane *l, uint32_t chunks, uint32_t tensors)
{
	return (chunks > 0 && grow(&l->chunks, l->nchunks + chunks, sizeof *l->chunks)) ||
			       grow(&l->heap, tensors, sizeof *l->heap) || grow(&l->names, tensors, sizeof *l->names)
		       ? -ENOMEM
		       : 0;
}

/* Returns the last tensor's part in a lane, or adds it. */
static struct part *part_in(struct rw_worker *w, uint32_t lane)
{
	struct tensor *t = &w->tensors[w->ntensors];
	struct lane *l = &w->lanes[lane];
	struct part *p = &w->parts[t->first_part];

	for (; p < &w->parts[w->nparts]; p++)
		if (p->lane == lane)
			return p;
	*p = (struct part){.tensor = w->ntensors, .lane = lane, .first = l->nchunks, .name = l->nnames, .heap_at = NONE};
	l->names[l->nnames++] = w->ntensors;
	w->nparts++;
	t->nparts++;
	return p;
}

static void append(struct rw_worker *w, uint32_t lane, uint64_t offset, uint32_t elems)
{
	struct part *p = part_in(w, lane);
	struct lane *l = &w->lanes[lane];

	p->count++;
	l->chunks[l->nchunks++] =
		(struct chunk){.offset = offset, .elems = elems, .tensor = w->ntensors, .part = (uint32_t)(p - w->parts)};
}

/* Returns the most parts that a tensor can have. */
static uint32_t most_parts(const struct rw_worker *w, const struct rw_tensor *t)
{
	uint64_t most = chunks_of(w, t);

	return most < w->cfg.nlanes ? (uint32_t)most : w->cfg.nlanes;
}

static int add(rw_worker *w, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *lanes, uint64_t nchunks)
{
	uint32_t total = w->ntensors + ntensors, nparts = w->nparts, counts[RW_MAX_LANES] = {0};
	int rc = check(w, tensors, ntensors, lanes, nchunks, counts);

	for (uint32_t i = 0; !rc && i < w->cfg.nlanes; i++)
		rc = reserve(&w->lanes[i], counts[i], total);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < ntensors; i++)
		nparts += most_parts(w, &tensors[i]);
	if (grow(&w->tensors, total, sizeof *w->tensors) || grow(&w->parts, nparts, sizeof *w->parts))
		return -ENOMEM;
	for (; ntensors > 0; ntensors--, tensors++) {
		struct tensor *t = &w->tensors[w->ntensors];
		uint64_t most = elems_per_chunk(w, tensors);

		*t = (struct tensor){.elems = tensors->elems,
				     .width = tensors->width,
				     .first_part = w->nparts,
				     .wire_type = tensors->wire_type,
				     .memory_type = tensors->memory_type};
		if (w->cfg.answers == RW_ANSWERS_CHANGES && t->wire_type == RW_F32 && !t->width && coding_refer(t))
			return -ENOMEM;
		if (t->width && rows_alloc(w, t, most_parts(w, tensors)))
			return -ENOMEM;
		for (uint64_t at = 0; at < t->elems; at += most) {
			uint64_t left = t->elems - at;

			append(w, *lanes++, at, (uint32_t)(left < most ? left : most));
		}
		if (t->width)
			rows_place(w, t);
		w->model_bytes += t->elems * 4;
		w->ntensors++;
	}
	return 0;
}

int rw_worker_add(rw_worker *w, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *chunk_lanes, uint64_t nchunks)
{
	int rc;

	enter(w);
	rc = add(w, tensors, ntensors, chunk_lanes, nchunks);
	pthread_mutex_unlock(&w->lock);
	return rc;
}
