/* Moving a lane's connection from one queue pair to another (worker.h). */
#include "../fabric/base/wait.h"
#include "internal.h"

#include <errno.h>
#include <time.h>

/* DRAIN_NS bounds the time in which a failed queue pair must return its receives. */
enum { DRAIN_NS = 500000000, DRAIN_PAUSE_NS = 100000 };

int rw_worker_broken(rw_worker *w, uint8_t *lanes)
{
	int n = 0;

	enter(w);
	for (uint32_t i = 0; i < w->cfg.nlanes; i++)
		n += lanes[i] = w->lanes[i].stream.broken;
	pthread_mutex_unlock(&w->lock);
	return n;
}

/*
 * Takes the messages that arrived before the queue pair was failed, because the aggregator may know that they did. It ends when all
 * posted receives have completed, with or without a message. The other lanes continue meanwhile.
 */
static int drain(struct rw_worker *w, struct lane *l)
{
	const struct timespec pause = {.tv_nsec = DRAIN_PAUSE_NS};
	const uint64_t end = rwb_now_ns() + DRAIN_NS; /* the simulation's clock does not advance here */

	while (l->receives > 0 && rwb_now_ns() < end) {
		int n = drive(w);

		if (n < 0)
			return n;
		run_callbacks(w);
		pthread_cond_broadcast(&w->cond);
		pthread_mutex_unlock(&w->lock);
		if (n == 0)
			nanosleep(&pause, NULL);
		pthread_mutex_lock(&w->lock);
	}
	return 0;
}

int rw_worker_detach(rw_worker *w, uint32_t lane, uint64_t *received)
{
	struct lane *l = &w->lanes[lane];
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = w->failure;
	if (!rc && l->qp) {
		l->stream.broken = 1;
		rwf_fail_qp(l->qp);
		rc = w->nics[l->nic].lost ? 0 : drain(w, l);
		l->qp = NULL;
		l->consumed = l->receives = 0;
		w->nics[l->nic].lanes--;
	}
	*received = l->stream.received;
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Returns the key, on the lane's NIC, of the memory of a message that waits in the ring. */
static uint32_t lkey_of(struct rw_worker *w, struct lane *l, const struct rwf_send_wr *wr)
{
	if (wr->laddr - (uintptr_t)w->cfg.staging < staging_bytes(w))
		return w->staging->mrs[l->nic].lkey;
	return w->tensors[l->chunks[imm_index(wr->imm)].tensor].src_region->mrs[l->nic].lkey;
}

/* Rewrites the messages that wait in the ring for the present queue pair. */
static void aim_again(struct rw_worker *w, struct lane *l)
{
	for (uint32_t i = 0; i < l->stream.held; i++) {
		struct rwf_send_wr *wr = stream_at(&l->stream, i);

		wr->wr_id = SEND_TAG | (uint64_t)(l - w->lanes) << 32;
		wr->flags &= (uint16_t)~RWF_SEND_SIGNALED;
		wr->rkey = l->slot_rkey;
		if (wr->length)
			wr->lkey = lkey_of(w, l, wr);
		if (imm_op(wr->imm) == RW_TENSOR && imm_index(wr->imm) != ANNOUNCEMENT)
			record_put((struct record *)(uintptr_t)wr->laddr, lane_record(w, l, l->names[imm_index(wr->imm)]));
	}
}

int rw_worker_resume(rw_worker *w, uint32_t lane, const struct rw_worker_lane *with, uint64_t peer_received)
{
	struct lane *l = &w->lanes[lane];
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = w->failure;
	if (!rc && l->qp)
		rc = rwf_fail(EINVAL, "resume lane %u: it has a queue pair: detach it first", lane);
	if (!rc && w->nics[with->nic].lost)
		rc = rwf_fail(EIO, "resume lane %u over NIC %u: its completion queue is lost: take another", lane, with->nic);
	if (!rc && stream_resume(&l->stream, peer_received))
		rc = worker_fail(
			w, RW_EPROTOCOL,
			"lane %u: the aggregator says it received %llu messages, of %llu sent and %llu known to have arrived", lane,
			(unsigned long long)peer_received, (unsigned long long)l->stream.reached,
			(unsigned long long)l->stream.done);
	if (!rc) {
		l->qp = with->qp;
		l->nic = with->nic;
		l->slot_addr = with->slot_addr;
		l->slot_rkey = with->slot_rkey;
		l->receives = with->recv_depth;
		w->nics[l->nic].lanes++;
		aim_again(w, l);
		rc = lane_flush(w, l);
		if (rc) {
			l->qp = NULL;
			w->nics[l->nic].lanes--;
		}
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}
