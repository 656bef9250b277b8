/* Provider shm: posting. Owner thread only; no allocation, and no system call unless someone sleeps. */
#include "shm.h"

#include <errno.h>
#include <string.h>

/* Reasons to keep a request waiting, beside enum rwf_wc_status. */
enum { WAIT_RECEIVE = -1, WAIT_REGIONS = -2, PEER_GONE = -3 };

static void publish(struct shm_qp *q, const struct rwf_send_wr *w, bool by_ref)
{
	struct shm_desc *d = &q->tx[q->tx_tail & q->tx_mask];

	d->laddr = w->laddr;
	d->raddr = w->raddr;
	d->lkey = w->lkey;
	d->rkey = w->rkey;
	d->len = w->length;
	d->imm = w->imm;
	d->by_ref = by_ref;
	q->tx_tail++;
	atomic_store_explicit(&d->seq, q->tx_tail, memory_order_release);
}

static bool has_receive(struct shm_qp *q)
{
	if (q->tx_tail < q->tx_credit)
		return true;
	q->tx_credit = atomic_load_explicit(&q->peer->recv_posted, memory_order_acquire);
	return q->tx_tail < q->tx_credit;
}

/*
 * Executes one request. Returns a work completion status or a reason to wait. Checks the source, the target, then the receive, as
 * hardware does. src is the payload's present address, because the payload of an inline request that waited was copied.
 */
static int carry_out(struct shm_qp *q, const struct rwf_send_wr *w, const void *src)
{
	bool imm = w->opcode == RWF_WRITE_WITH_IMM, in_line = w->flags & RWF_SEND_INLINE;
	bool placed = w->flags & RWF_SEND_PLACED;
	bool by_ref = q->peer_by_ref && imm && !in_line && !placed && w->length;
	char *dst = NULL;

	if (w->length) {
		int rc;

		if (!in_line && !placed && !rwb_mr_allows(&q->base.head, w->lkey, w->laddr, w->length, 0))
			return RWF_WC_LOC_PROT_ERR;
		rc = shm_sync_regions(q);
		if (rc)
			return rc == -EAGAIN ? WAIT_REGIONS : PEER_GONE;
		dst = shm_remote_target(q, w->rkey, w->raddr, w->length);
		if (!dst)
			return RWF_WC_REM_ACCESS_ERR;
	}
	if (imm && !has_receive(q))
		return WAIT_RECEIVE;
	if (by_ref && atomic_load_explicit(&q->backlog, memory_order_relaxed)) {
		/* The peer must be able to find the source, so our own messages go first. */
		shm_advertise(q);
		if (atomic_load_explicit(&q->backlog, memory_order_relaxed))
			return WAIT_REGIONS;
	}
	if (!by_ref && !placed && w->length)
		shm_copy(dst, src, w->length, w->flags & RWF_SEND_PAST_CACHE);
	if (imm)
		publish(q, w, by_ref);
	return RWF_WC_SUCCESS;
}

/* Applies the result of carry_out for a request. Returns false if the request must wait. */
static bool settle(struct shm_qp *q, const struct rwf_send_wr *w, int status)
{
	if (status == WAIT_RECEIVE || status == WAIT_REGIONS) {
		q->stalled_on_peer = status == WAIT_REGIONS;
		return false;
	}
	if (status == PEER_GONE) {
		shm_enter_error(q, RWF_WC_RETRY_EXC_ERR);
		return false;
	}
	q->stalled_ms = 0;
	if (q->waiting_used && w->flags & RWF_SEND_INLINE && w->length)
		q->waiting_used--;
	rwb_complete_send(&q->cq->base, &q->base, w, status);
	if (status != RWF_WC_SUCCESS)
		shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
	return true;
}

/*
 * Appends a request to the waiting ones, with its bytes if it is inline. The number of requests that wait for a peer without
 * receives is bounded. Returns 0 or a negative errno.
 */
static int keep_waiting(struct shm_qp *q, const struct rwf_send_wr *w)
{
	bool bytes = w->flags & RWF_SEND_INLINE && w->length;

	if (bytes && q->waiting_used == q->waiting_cap)
		return rwf_fail(ENOMEM, "post send on queue pair 0x%x: %u inline payloads wait for the peer, the most it may",
				q->base.head.num, q->waiting_cap);
	struct rwf_send_wr *kept = rwb_send(&q->base.sends, q->base.sends.posted++);

	*kept = *w;
	if (bytes) {
		uint8_t *at = q->waiting + (size_t)(q->waiting_next++ % q->waiting_cap) * q->base.sends.max_inline;

		memcpy(at, (const void *)(uintptr_t)w->laddr, w->length);
		kept->laddr = (uintptr_t)at;
		q->waiting_used++;
	}
	return 0;
}

/* Wakes the peer if it sleeps for descriptors published since the last call. */
static void ring(struct shm_qp *q)
{
	uint64_t at;

	if (q->tx_tail == q->tx_rung)
		return;
	q->tx_rung = q->tx_tail;
	atomic_thread_fence(memory_order_seq_cst);
	at = atomic_load_explicit(&q->peer->wake_at, memory_order_relaxed);
	if (at <= q->tx_tail && at != q->last_wake) {
		q->last_wake = at;
		shm_wake(q);
	}
}

/* Executes the requests that wait, and fails the oldest if it has waited too long. */
void shm_push_waiting(struct shm_qp *q, uint64_t now_ms)
{
	while (shm_state(q) == RWF_QPS_RTS && q->base.acked != q->base.sends.posted) {
		const struct rwf_send_wr *w = rwb_send(&q->base.sends, q->base.acked);

		if (settle(q, w, carry_out(q, w, (const void *)(uintptr_t)w->laddr)))
			continue;
		if (q->stalled_ms == 0)
			q->stalled_ms = now_ms;
		if (now_ms - q->stalled_ms >= (q->stalled_on_peer ? q->ack_ms : q->rnr_ms))
			settle(q, w, q->stalled_on_peer ? RWF_WC_RETRY_EXC_ERR : RWF_WC_RNR_RETRY_EXC_ERR);
		break;
	}
	ring(q);
}

int shm_post_send(rwf_qp *qp, const struct rwf_send_wr *wr, int n)
{
	struct shm_qp *q = (struct shm_qp *)qp;
	int state = rwb_sending_state(&q->base), i, rc = 0;

	if (state != RWF_QPS_RTS && state != RWF_QPS_ERR)
		return rwf_fail(EINVAL, "post send: queue pair 0x%x is not connected", qp->num);
	for (i = 0; i < n; i++) {
		const struct rwf_send_wr *w = &wr[i];
		int status;

		rc = rwb_sends_check(&q->base.sends, qp, w, SHM_DEVICE_FLAGS);
		if (rc)
			break;
		if (shm_state(q) == RWF_QPS_ERR) {
			shm_enter_error(q, RWF_WC_RETRY_EXC_ERR);
			*rwb_send(&q->base.sends, q->base.sends.posted++) = *w;
			rwb_flush(&q->cq->base, &q->base);
			continue;
		}
		if (q->base.acked != q->base.sends.posted) {
			rc = keep_waiting(q, w);
			if (rc)
				break;
			continue;
		}
		status = carry_out(q, w, (const void *)(uintptr_t)w->laddr);
		if (status < 0) {
			rc = keep_waiting(q, w);
			if (rc)
				break;
			settle(q, w, status);
			continue;
		}
		q->base.sends.posted++;
		settle(q, w, status);
	}
	ring(q);
	shm_cq_check(q->cq);
	return i ? i : rc;
}

void *shm_map(rwf_qp *qp, uint32_t rkey, uint64_t raddr, uint32_t length)
{
	struct shm_qp *q = (struct shm_qp *)qp;
	void *data;
	int rc;

	if (shm_state(q) != RWF_QPS_RTS || q->base.acked != q->base.sends.posted) {
		rwf_fail(EAGAIN, "map: queue pair 0x%x is not connected, or earlier requests wait in its send queue", qp->num);
		return NULL;
	}
	rc = shm_sync_regions(q);
	if (rc) {
		if (rc != -EAGAIN)
			shm_enter_error(q, RWF_WC_RETRY_EXC_ERR);
		rwf_fail(-rc, "map: the peer of queue pair 0x%x %s", qp->num,
			 rc == -EAGAIN ? "has yet to tell its regions" : "is gone");
		return NULL;
	}
	data = shm_remote_target(q, rkey, raddr, length);
	if (!data)
		rwf_fail(EACCES, "map: key 0x%x of queue pair 0x%x's peer does not allow %u bytes at 0x%llx to be written", rkey,
			 qp->num, length, (unsigned long long)raddr);
	return data;
}

/*
 * Posts receives, and publishes their count to the peer by shared memory. Before the connection is up that memory does not exist,
 * and the thread that lets the peer in publishes the count. The fences on both sides make sure that one of the two does.
 */
int shm_post_recv(rwf_qp *qp, uint64_t wr_id, int n)
{
	struct shm_qp *q = (struct shm_qp *)qp;
	int rc = rwb_add_receives(&q->base, wr_id, n);

	if (rc)
		return rc;
	if (atomic_load_explicit(&q->base.head.state, memory_order_seq_cst) == RWF_QPS_RTS) {
		atomic_store_explicit(&q->mine->recv_posted, q->base.recv_posted, memory_order_release);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load_explicit(&q->peer->rnr_armed, memory_order_relaxed) &&
		    atomic_exchange_explicit(&q->peer->rnr_armed, 0, memory_order_relaxed))
			shm_wake(q);
	} else if (q->ended) {
		rwb_flush(&q->cq->base, &q->base);
	}
	return 0;
}
