/* Provider shm: polling, arming, sleeping. Owner thread only. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits for epoll's events and handles them. */
static void handle_events(struct shm_cq *cq, int64_t timeout_ns)
{
	struct epoll_event ev[16];
	struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
	int n = (int)syscall(SYS_epoll_pwait2, cq->epfd, ev, 16, &t, NULL, 8);

	if (n < 0 && errno == ENOSYS)
		n = epoll_wait(cq->epfd, ev, 16, (int)((timeout_ns + 999999) / 1000000));
	for (int i = 0; i < n; i++) {
		struct shm_qp *q = (struct shm_qp *)(uintptr_t)(ev[i].data.u64 & ~(uint64_t)SHM_PEER_PROCESS);

		if (!q) {
			rwb_clear(cq->wake_fd);
			cq->woken = true;
		} else if (shm_state(q) == RWF_QPS_RTS && (shm_drain(q) || (ev[i].data.u64 & SHM_PEER_PROCESS))) {
			shm_enter_error(q, RWF_WC_RETRY_EXC_ERR);
		}
	}
}

/* Ends a queue pair that is not connected: the accepting thread gave it up, or its peer did not come in time. */
static void check_unconnected(struct shm_qp *q, uint64_t now)
{
	int rtr = RWF_QPS_RTR;

	if (shm_state(q) == RWF_QPS_RTR && now >= q->deadline_ms &&
	    atomic_compare_exchange_strong(&q->base.state, &rtr, RWF_QPS_ERR))
		shm_raise(q, RWF_EVENT_QP_FATAL);
	if (shm_state(q) == RWF_QPS_ERR)
		shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
}

/* Fails the queue pairs whose peers took pages away from under a mapping. */
static void check_tears(struct shm_cq *cq)
{
	uint32_t tears = atomic_load_explicit(&shm_tears, memory_order_relaxed);

	if (cq->tears_seen == tears)
		return;
	cq->tears_seen = tears;
	for (int i = 0; i < cq->nqps; i++)
		if (shm_state(cq->qps[i]) == RWF_QPS_RTS && shm_lost_pages(cq->qps[i]))
			shm_enter_error(cq->qps[i], RWF_WC_RETRY_EXC_ERR);
}

/* Gives each queue pair in turn time to populate, one in a timer tick. */
static void populate(struct shm_cq *cq)
{
	for (int i = 0; i < cq->nqps; i++) {
		struct shm_qp *q = cq->qps[(cq->start + i) % cq->nqps];

		if (q->unpopulated > 0 && shm_state(q) == RWF_QPS_RTS) {
			shm_populate(q);
			return;
		}
	}
}

static void progress(struct shm_cq *cq)
{
	uint64_t now = rwb_now_ms();

	/* Checks the sockets once a timer tick: a poller that never sleeps must notice a death too. */
	if (now != cq->now_ms) {
		cq->now_ms = now;
		handle_events(cq, 0);
		check_tears(cq);
		populate(cq);
	}
	for (int k = 0, i = cq->start; k < cq->nqps; k++) {
		struct shm_qp *q = cq->qps[i];

		if (++i == cq->nqps)
			i = 0;
		if (shm_state(q) != RWF_QPS_RTS) {
			check_unconnected(q, now);
			continue;
		}
		if (q->recv_cq == cq && !shm_receive(q))
			shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
		if (q->sent != q->sends.posted && q->send_cq == cq)
			shm_push_waiting(q, now);
		if (atomic_load_explicit(&q->backlog, memory_order_relaxed))
			shm_advertise(q);
	}
	if (++cq->start >= cq->nqps)
		cq->start = 0;
	shm_cq_check(cq);
}

int shm_poll_cq(rwf_cq *base, struct rwf_wc *wc, int n)
{
	struct shm_cq *cq = (struct shm_cq *)base;
	const struct rwb_completion *e;
	int got = 0;

	cq->ready = false;
	progress(cq);
	if (cq->overrun)
		return rwf_fail(EOVERFLOW, "poll: the completion queue of %u entries overran; its queue pairs have failed",
				cq->ring.limit);
	while (got < n && (e = rwb_ring_pop(&cq->ring))) {
		wc[got++] = e->wc;
		if (e->wc.opcode == RWF_WC_SEND)
			((struct shm_qp *)e->qp)->sends.freed = e->done;
	}
	return got;
}

/* Asks the peers to wake us when senders of this queue can go on. Returns whether one waits. */
static bool arm_senders(struct shm_cq *cq)
{
	bool any = false;

	for (int i = 0; i < cq->nqps; i++) {
		struct shm_qp *q = cq->qps[i];

		if (q->send_cq != cq || q->sent == q->sends.posted || shm_state(q) != RWF_QPS_RTS)
			continue;
		atomic_store_explicit(&q->mine->rnr_armed, 1, memory_order_relaxed);
		any = true;
	}
	return any;
}

/*
 * Publishes to each peer the count of descriptors at which to wake us. When count completions over n queue pairs are there,
 * one of these has its share of ceil(count/n), so waking at that share is never too late. The fence pairs with the one
 * between a sender's publishing and its look at wake_at: either it sees that we sleep, or we see what it published.
 */
int shm_req_notify_cq(rwf_cq *base, uint32_t count)
{
	struct shm_cq *cq = (struct shm_cq *)base;
	uint64_t share = cq->nqps ? (count + (uint64_t)cq->nqps - 1) / (uint64_t)cq->nqps : 1;

	if (share == 0)
		share = 1;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < cq->nqps; i++) {
			struct shm_qp *q = cq->qps[i];
			uint64_t room = q->rq_posted - q->rx_head, at = q->rx_head + (share < room ? share : room);

			if (q->recv_cq != cq || room == 0 || shm_state(q) != RWF_QPS_RTS)
				continue;
			if (pass == 0)
				atomic_store_explicit(&q->mine->wake_at, at, memory_order_relaxed);
			else if (atomic_load_explicit(&q->rx[(at - 1) & q->rx_mask].seq, memory_order_acquire) == at)
				cq->ready = true;
		}
		atomic_thread_fence(memory_order_seq_cst);
	}
	return 0;
}

static void disarm(struct shm_cq *cq)
{
	for (int i = 0; i < cq->nqps; i++)
		if (cq->qps[i]->recv_cq == cq && shm_state(cq->qps[i]) == RWF_QPS_RTS)
			atomic_store_explicit(&cq->qps[i]->mine->wake_at, SHM_DISARMED, memory_order_relaxed);
	cq->ready = cq->woken = false;
}

/* Returns when a sleeper must look again by itself to give something up, in coarse milliseconds. UINT64_MAX: never. */
static uint64_t next_deadline(const struct shm_cq *cq)
{
	uint64_t first = UINT64_MAX;

	for (int i = 0; i < cq->nqps; i++) {
		struct shm_qp *q = cq->qps[i];
		uint64_t at = UINT64_MAX;

		if (shm_state(q) == RWF_QPS_RTR)
			at = q->deadline_ms;
		else if (shm_state(q) == RWF_QPS_RTS && q->stalled_ms)
			at = q->stalled_ms + (q->stalled_on_peer ? q->ack_ms : q->rnr_ms);
		if (atomic_load_explicit(&q->backlog, memory_order_relaxed))
			at = 0; /* the peer's socket was full, and nobody notifies us when it no longer is */
		if (at < first)
			first = at;
	}
	return first;
}

int shm_wait_cq(rwf_cq *base, int64_t timeout_us)
{
	struct shm_cq *cq = (struct shm_cq *)base;
	int64_t end = (int64_t)rwb_now_ns() + (timeout_us > 0 ? timeout_us : 0) * 1000;
	int rc = 1;

	while (!cq->ready && !cq->woken && !cq->overrun && rwb_ring_length(&cq->ring) == 0) {
		int64_t left = end - (int64_t)rwb_now_ns();
		uint64_t due;

		if (arm_senders(cq)) {
			atomic_thread_fence(memory_order_seq_cst);
			progress(cq);
			if (rwb_ring_length(&cq->ring) != 0)
				break;
		}
		due = next_deadline(cq);
		if (due != UINT64_MAX) {
			int64_t ms = (int64_t)due - (int64_t)rwb_now_ms();

			if ((ms < 0 ? 0 : ms) * 1000000 < left)
				left = (ms < 0 ? 0 : ms) * 1000000 + 1000000;
		}
		handle_events(cq, left > 0 ? left : 0);
		progress(cq);
		if (rwb_ring_length(&cq->ring) == 0 && !cq->woken && !cq->overrun && (int64_t)rwb_now_ns() >= end) {
			rc = 0;
			break;
		}
	}
	disarm(cq);
	return rc;
}
