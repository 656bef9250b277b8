/* One lane: sending messages, and handling answers. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Staged chunks per doorbell. It is small, so that the aggregator starts on them while the next are still being copied. */
enum { STAGED_BATCH = 8 };
/* The number of breaks without progress for which the device may blame this side. */
enum { MOST_FRUITLESS = 8 };

int lane_init(struct rw_worker *w, uint32_t index)
{
	struct lane *l = &w->lanes[index];
	uint32_t window = w->cfg.window, nstaging = w->cfg.nstaging;

	l->staging = (char *)w->cfg.staging + (size_t)index * nstaging * w->cfg.chunk_bytes;
	l->request_head = l->last_request = l->again_head = NONE;
	l->slots = calloc(window, sizeof *l->slots);
	l->staging_free = calloc(nstaging, sizeof *l->staging_free);
	l->records = calloc(window, sizeof *l->records);
	if (!l->slots || !l->staging_free || !l->records || stream_init(&l->stream, w->cfg.send_depth))
		return -ENOMEM;
	l->stream.broken = 1;
	for (uint32_t i = 0; i < window; i++)
		l->slots[i] = (uint16_t)i;
	l->slot_count = window;
	for (uint32_t i = 0; i < nstaging; i++)
		l->staging_free[i] = (uint16_t)(nstaging - 1 - i);
	l->staging_count = nstaging;
	return 0;
}

void lane_free(struct lane *l)
{
	free(l->chunks);
	free(l->names);
	free(l->slots);
	free(l->staging_free);
	free(l->records);
	stream_free(&l->stream);
	free(l->heap);
	free(l->flows);
	free(l->sent);
}

/*
 * Takes a slot and its staging buffer, and leaves so many buffers for other messages. By reference only messages that need a buffer
 * take one, and slots have no numbers.
 */
static int take(struct rw_worker *w, struct lane *l, int wants_staging, uint32_t leave, uint16_t *slot, uint16_t *staging)
{
	if (w->cfg.by_reference) {
		if (wants_staging) {
			if (l->staging_count <= leave)
				return 0;
			*staging = l->staging_free[--l->staging_count];
		} else {
			*staging = UINT16_MAX;
		}
		*slot = 0;
	} else {
		*slot = *staging = l->slots[l->slot_head];
		l->slot_head = (l->slot_head + 1) % w->cfg.window;
		l->slot_count--;
	}
	l->in_flight++;
	return 1;
}

static void free_slot(struct rw_worker *w, struct lane *l, uint16_t slot, uint16_t staging)
{
	if (w->cfg.by_reference) {
		if (staging != UINT16_MAX)
			l->staging_free[l->staging_count++] = staging;
	} else {
		l->slots[(l->slot_head + l->slot_count) % w->cfg.window] = slot;
		l->slot_count++;
	}
	l->in_flight--;
}

static void aim(struct rw_worker *w, struct lane *l, struct rwf_send_wr *wr, uint16_t slot, uint32_t imm)
{
	memset(wr, 0, sizeof *wr);
	wr->wr_id = SEND_TAG | (uint64_t)(l - w->lanes) << 32;
	wr->opcode = RWF_WRITE_WITH_IMM;
	wr->imm = imm;
	wr->raddr = l->slot_addr + (uint64_t)slot * w->cfg.chunk_bytes;
	wr->rkey = l->slot_rkey;
}

static void from_staging(struct rw_worker *w, struct lane *l, struct rwf_send_wr *wr, uint16_t staging, uint32_t length)
{
	wr->laddr = (uintptr_t)staging_at(w, l, staging);
	wr->lkey = w->staging->mrs[l->nic].lkey;
	wr->length = length;
}

static struct record *record_at(struct rw_worker *w, struct lane *l, const struct control *c)
{
	return (struct record *)staging_at(w, l, c->staging);
}

struct record lane_record(const struct rw_worker *w, const struct lane *l, uint32_t tensor)
{
	const struct tensor *t = &w->tensors[tensor];
	struct record r = {.dst = t->bound_dst};

	memcpy(r.hyper, t->hyper, sizeof r.hyper);
	if (t->bound_dst) {
		r.rkey = t->bound_region->mrs[l->nic].rkey;
		r.flags = RECORD_HAS_DST | (t->past_cache ? RECORD_PAST_CACHE : 0);
	}
	r.flags |= t->flush & FLUSH_PRESENT ? RECORD_FLUSH : 0;
	return r;
}

/* The most staging buffers that whole chunks use by reference, so that they stay in the cache. Streams of rows may use more. */
enum { CHUNKS_STAGED = 32 };

/* Buffers are kept for streams of rows, and the last other one is reserved for requested chunks, like slots (queue_next). */
static uint32_t leave_by(const struct rw_worker *w, const struct lane *l, const struct chunk *c)
{
	const uint32_t theirs = CHUNKS_STAGED + l->extra + l->firsts - l->kept;
	const uint32_t cold = w->cfg.nstaging > theirs ? w->cfg.nstaging - theirs : 0;

	return (cold > l->kept ? cold : l->kept) + (l->requests_open > 0 && !c->requested);
}

/* Builds a message of one record, and leaves so many staging buffers for other messages. */
static int build_control(struct rw_worker *w, struct lane *l, struct control *c, uint32_t leave, uint32_t imm, struct record r,
			 struct rwf_send_wr *wr)
{
	if (!take(w, l, 1, leave, &c->slot, &c->staging))
		return 0;
	aim(w, l, wr, c->slot, imm);
	from_staging(w, l, wr, c->staging, RW_RECORD_BYTES);
	record_put(record_at(w, l, c), r);
	return 1;
}

static int build_record(struct rw_worker *w, struct lane *l, uint32_t leave, uint8_t epoch, uint32_t name, struct record r,
			struct rwf_send_wr *wr)
{
	struct control *c = &l->records[(l->record_head + l->record_count) % w->cfg.window];

	if (!build_control(w, l, c, leave, imm_pack(RW_TENSOR, epoch, name), r, wr))
		return 0;
	c->name = name;
	l->record_count++;
	return 1;
}

static int build_chunk(struct rw_worker *w, struct lane *l, uint32_t index, struct rwf_send_wr *wr, int *staged)
{
	struct chunk *c = &l->chunks[index];
	struct tensor *t = &w->tensors[c->tensor];
	uint32_t bytes = c->elems * type_size(t->wire_type);
	int payload = t->src != NULL, answer = t->dst != NULL;
	/* By reference the answer overwrites the payload, so an unbound answer must not lie in the caller's source. */
	int direct = payload && t->src_region && !(w->cfg.by_reference && answer && !t->bound_dst);
	int needs = payload ? !direct : answer && !t->bound_dst;

	if (!take(w, l, needs, leave_by(w, l, c), &c->slot, &c->staging))
		return 0;
	aim(w, l, wr, c->slot, imm_pack(t->kind, t->epoch, index));
	if (direct) {
		wr->laddr = (uintptr_t)t->src + c->offset * type_size(t->wire_type);
		wr->lkey = t->src_region->mrs[l->nic].lkey;
		wr->length = bytes;
	} else if (t->coded) {
		coding_send(w, c, staging_at(w, l, c->staging));
		from_staging(w, l, wr, c->staging, c->length);
		++*staged;
		w->stats.copied_bytes += c->length;
	} else if (payload) {
		rwk_convert(w->cfg.isa, (uintptr_t)staging_at(w, l, c->staging), t->wire_type,
			    (uintptr_t)t->src + c->offset * type_size(t->memory_type), t->memory_type, c->elems, 0);
		from_staging(w, l, wr, c->staging, bytes);
		++*staged;
		w->stats.copied_bytes += bytes;
	} else if (needs && w->cfg.by_reference) {
		/* By reference the length only determines the answer's address. */
		from_staging(w, l, wr, c->staging, bytes);
	}
	queue_sent(w, l, index);
	c->state = CHUNK_IN_FLIGHT;
	if (t->coded && l->in_flight < w->cfg.window && queue_next(w, l) != NONE)
		coding_more(c, staging_at(w, l, c->staging));
	w->stats.sent_chunks++;
	w->stats.sent_bytes += t->coded ? c->length : payload ? bytes : 0;
	w->stats.sent_raw_bytes += payload ? bytes : 0;
	return 1;
}

/* Builds the next message of a stream of rows, for which there is room (rows_next). */
static int build_rows(struct rw_worker *w, struct lane *l, uint32_t part, int class, struct rwf_send_wr *wr, int *staged)
{
	const struct part *p = &w->parts[part];
	uint16_t slot, staging;

	if (!take(w, l, 1, 0, &slot, &staging))
		return 0;
	aim(w, l, wr, slot, imm_pack(RW_PUSH, w->tensors[p->tensor].epoch, p->first));
	from_staging(w, l, wr, staging, rows_put(w, l, part, class, staging));
	++*staged;
	w->stats.copied_bytes += wr->length;
	w->stats.sent_chunks++;
	w->stats.sent_bytes += wr->length;
	w->stats.sent_raw_bytes += wr->length;
	return 1;
}

/* Builds the next message. Returns 0 without one, or without room for it. */
static int build_next(struct rw_worker *w, struct lane *l, struct rwf_send_wr *wr, int *staged)
{
	uint32_t index = NONE, part, leave = 0;
	int built, class = FLOW_CLASSES;
	struct part *p;

	if (l->announce) {
		built = build_record(w, l, 0, 0, ANNOUNCEMENT, (struct record){.step = w->step}, wr);
		l->announce = !built;
		return built;
	}
	if (l->commit_state == CHUNK_PENDING) {
		built = build_control(w, l, &l->commit, 0, imm_pack(RW_COMMIT, w->commit.epoch, 0), w->commit_record, wr);
		l->commit_state = built ? CHUNK_IN_FLIGHT : CHUNK_PENDING;
		return built;
	}
	part = rows_next(w, l, &class);
	if (part == NONE) {
		index = queue_next(w, l);
		if (index == NONE)
			return 0;
		part = l->chunks[index].part;
		leave = leave_by(w, l, &l->chunks[index]);
	}
	p = &w->parts[part];
	if (!p->record_dirty)
		return index == NONE ? build_rows(w, l, part, class, wr, staged) : build_chunk(w, l, index, wr, staged);
	built = build_record(w, l, leave, w->tensors[p->tensor].epoch, p->name, lane_record(w, l, p->tensor), wr);
	p->record_dirty = !built;
	return built;
}

int lane_flush(struct rw_worker *w, struct lane *l)
{
	struct stream *s = &l->stream;
	struct rwf_send_wr *wrs;
	uint32_t n = s->unposted;

	if (n == 0 || s->broken)
		return 0;
	stream_at(s, s->held - 1)->flags |= RWF_SEND_SIGNALED;
	stream_at(s, s->held - 1)->wr_id += n;
	while ((n = stream_next(s, &wrs)) > 0) {
		int posted = rwf_post_send(l->qp, wrs, (int)n);

		/* A send may fail after part of the batch was posted. */
		stream_posted(s, posted > 0 ? (uint32_t)posted : 0);
		if (posted != (int)n) {
			if (!w->cfg.resumable || rwf_qp_state(l->qp) != RWF_QPS_ERR)
				return worker_fail(w, RW_ETRANSPORT, "lane %td: post send: %s", l - w->lanes, rwf_last_error());
			s->broken = 1;
			return 0;
		}
		w->stats.doorbells++;
	}
	return 0;
}

int lane_send(struct rw_worker *w, struct lane *l)
{
	struct rwf_send_wr *wr;
	int staged = 0, rc = 0;

	while (!rc && l->in_flight < w->cfg.window && (wr = stream_place(&l->stream)) && build_next(w, l, wr, &staged)) {
		stream_put(&l->stream);
		if (l->stream.unposted >= SEND_BATCH || staged == STAGED_BATCH) {
			rc = lane_flush(w, l);
			staged = 0;
		}
	}
	return rc ? rc : lane_flush(w, l);
}

static int receive_notice(struct rw_worker *w, struct lane *l, uint32_t what, uint32_t index)
{
	struct chunk *c;

	if (what > RW_NOTICE_REQUEST || index >= l->nchunks)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: notice %u about chunk %u of %u", l - w->lanes, what, index,
				   l->nchunks);
	if (what == RW_NOTICE_REQUEST) {
		queue_request(l, index);
		return 0;
	}
	c = &l->chunks[index];
	if (c->state != CHUNK_IN_FLIGHT)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: chunk %u NACKed, which was not sent", l - w->lanes, index);
	if (w->tensors[c->tensor].coded)
		coding_keep(w, c, staging_at(w, l, c->staging));
	free_slot(w, l, c->slot, c->staging);
	c->state = CHUNK_PENDING;
	queue_again(l, index);
	w->stats.nacks++;
	return 0;
}

static int receive_record(struct rw_worker *w, struct lane *l, uint32_t index)
{
	const struct control *c = &l->records[l->record_head];

	if (l->record_count == 0 || c->name != index)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: answer to record %u, which was not sent", l - w->lanes, index);
	l->record_head = (l->record_head + 1) % w->cfg.window;
	l->record_count--;
	free_slot(w, l, c->slot, c->staging);
	return 0;
}

static int receive_commit(struct rw_worker *w, struct lane *l, uint32_t byte_len)
{
	if (l->commit_state != CHUNK_IN_FLIGHT || byte_len != RW_RECORD_BYTES)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: answer of %u bytes to a commit", l - w->lanes, byte_len);
	w->commit_record = *record_at(w, l, &l->commit);
	free_slot(w, l, l->commit.slot, l->commit.staging);
	l->commit_state = CHUNK_IDLE;
	if (--w->commit.remaining == 0) {
		w->step = w->commit_record.step; /* in mode stream the aggregator determines the next step */
		w->announced = 0;
		tensor_done(w, COMMIT_TENSOR, 0);
	}
	return 0;
}

/* Copies the values of an answer from staging to the destination. */
static int receive_values(struct rw_worker *w, struct lane *l, uint32_t index, uint32_t length)
{
	const struct chunk *c = &l->chunks[index];
	const struct tensor *t = &w->tensors[c->tensor];
	const char *staged = staging_at(w, l, c->staging), *wrong;

	w->stats.copied_bytes += length;
	if (!w->cfg.answers || t->wire_type != RWK_F32) {
		rwk_convert(w->cfg.isa, (uintptr_t)t->dst + c->offset * type_size(t->memory_type), t->memory_type,
			    (uintptr_t)staged, t->wire_type, c->elems, past_cache(w));
		return 0;
	}
	wrong = coding_receive(w, c, staged, length);
	return wrong ? worker_fail(w, RW_EPROTOCOL, "lane %td: chunk %u answered with %u bytes for %u elements, but %s",
				   l - w->lanes, index, length, c->elems, wrong)
		     : 0;
}

static int receive_rows(struct rw_worker *w, struct lane *l, const struct chunk *c, const struct rwf_wc *wc)
{
	int staging = rows_receive(w, l, c, wc);

	if (staging < 0)
		return staging;
	free_slot(w, l, (uint16_t)staging, (uint16_t)staging);
	w->stats.copied_bytes += wc->byte_len;
	w->stats.received_chunks++;
	w->stats.received_bytes += wc->byte_len;
	w->stats.received_raw_bytes += wc->byte_len;
	return 0;
}

static int receive_chunk(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc)
{
	uint32_t index = imm_index(wc->imm), op = imm_op(wc->imm), bytes;
	struct chunk *c;
	struct tensor *t;
	int empty, shorter;

	if (index >= l->nchunks)
		return worker_fail(w, RW_EPROTOCOL, "lane %td: answer for chunk %u of %u", l - w->lanes, index, l->nchunks);
	c = &l->chunks[index];
	t = &w->tensors[c->tensor];
	if (t->by_rows)
		return receive_rows(w, l, c, wc);
	bytes = op == RW_PUSH ? 0 : c->elems * type_size(t->wire_type);
	empty = w->cfg.steps && op == RW_PUSH && t->kind == RW_PUSHPULL; /* the update comes later, and the worker pulls then */
	shorter = w->cfg.answers && op == RW_PUSHPULL && t->wire_type == RWK_F32 && wc->byte_len < bytes;
	if (c->state != CHUNK_IN_FLIGHT || (op != t->kind && !empty) || imm_epoch(wc->imm) != t->epoch ||
	    (wc->byte_len != bytes && !shorter))
		return worker_fail(w, RW_EPROTOCOL,
				   "lane %td: chunk %u answered with op %u, epoch %u, %u bytes; expected op %u, epoch %u, %u bytes",
				   l - w->lanes, index, op, imm_epoch(wc->imm), wc->byte_len, t->kind, t->epoch, bytes);
	if (op != RW_PUSH && !t->bound_dst && receive_values(w, l, index, wc->byte_len))
		return w->failure;
	free_slot(w, l, c->slot, c->staging);
	c->state = CHUNK_IDLE;
	c->kept = 0;
	w->stats.received_chunks++;
	w->stats.received_bytes += wc->byte_len;
	w->stats.received_raw_bytes += bytes;
	if (--t->remaining == 0)
		tensor_done(w, c->tensor, 0);
	return 0;
}

/*
 * Reports whether another queue pair may succeed. Soft-RoCE calls a packet that finds no link an operation error, which for other
 * devices is a work request that they do not understand. An error that is fatal to one NIC need not be fatal to another. An error
 * that is this side's own fault recurs.
 */
static int can_resume(struct rw_worker *w, struct lane *l, uint16_t status)
{
	if (!w->cfg.resumable)
		return 0;
	if (status != RWF_WC_LOC_QP_OP_ERR && status != RWF_WC_FATAL_ERR)
		return status == RWF_WC_WR_FLUSH_ERR || status == RWF_WC_RETRY_EXC_ERR;
	if (l->stream.received + l->stream.done != l->progress) {
		l->progress = l->stream.received + l->stream.done;
		l->fruitless = 0;
	}
	return ++l->fruitless <= MOST_FRUITLESS;
}

int lane_lost(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc)
{
	if (!(wc->wr_id & SEND_TAG))
		l->receives--;
	if (l->stream.broken)
		return 0;
	if (can_resume(w, l, wc->status)) {
		l->stream.broken = 1;
		return 0;
	}
	return worker_fail(w, RW_ETRANSPORT, "lane %td: connection to the aggregator lost: %s", l - w->lanes,
			   rwf_wc_status_str(wc->status));
}

static int receive_abort(struct rw_worker *w, uint32_t rank)
{
	if (rank == (1u << RW_INDEX_BITS) - 1)
		return worker_fail(w, RW_EABORTED, "the aggregator ended the job");
	return worker_fail(w, RW_EABORTED, "the aggregator ended the job (worker %u failed)", rank);
}

int lane_receive(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc)
{
	if (wc->wr_id & SEND_TAG) {
		stream_sent(&l->stream, (uint32_t)wc->wr_id);
		return 0;
	}
	l->receives--;
	l->stream.received++;
	l->consumed++;
	switch (imm_op(wc->imm)) {
	case RW_TENSOR:
		return receive_record(w, l, imm_index(wc->imm));
	case RW_COMMIT:
		return receive_commit(w, l, wc->byte_len);
	case RW_NOTICE:
		return receive_notice(w, l, imm_epoch(wc->imm), imm_index(wc->imm));
	case RW_ABORT:
		return receive_abort(w, imm_index(wc->imm));
	default:
		return receive_chunk(w, l, wc);
	}
}
