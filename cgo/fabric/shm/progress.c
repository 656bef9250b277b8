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
	int n = (int)syscall(SYS_epoll_pwait2, cq->base.epoll_fd, ev, 16, &t, NULL, 8);

	if (n < 0 && errno == ENOSYS)
		n = epoll_wait(cq->base.epoll_fd, ev, 16, (int)((timeout_ns + 999999) / 1000000));
	for (int i = 0; i < n; i++) {
		struct shm_qp *q = (struct shm_qp *)(uintptr_t)(ev[i].data.u64 & ~(uint64_t)SHM_PEER_PROCESS);

		if (!q)
			rwb_clear(cq->base.head.wake_fd);
		else if (shm_state(q) == RWF_QPS_RTS && (shm_drain(q) < 0 || (ev[i].data.u64 & SHM_PEER_PROCESS)))
			shm_enter_error(q, RWF_WC_RETRY_EXC_ERR);
	}
}

/* Fails the queue pairs whose peers took pages away from under a mapping. */
static void check_tears(struct shm_cq *cq)
{
	struct shm_qp *q;
	uint32_t tears = atomic_load_explicit(&shm_tears, memory_order_relaxed);

	if (cq->tears_seen == tears)
		return;
	cq->tears_seen = tears;
	TAILQ_FOREACH(q, &cq->qps, of_cq)
		if (shm_state(q) == RWF_QPS_RTS && shm_lost_pages(q))
			shm_enter_error(q, RWF_WC_RETRY_EXC_ERR);
}

/* Raises the allowances for peers' messages by the time that has passed. */
static void allow(struct shm_cq *cq, uint64_t now)
{
	enum { MOST_MS = 4 };
	uint64_t ms = now - cq->now_ms < MOST_MS ? now - cq->now_ms : MOST_MS;

	cq->allowance += (int64_t)ms * SHM_COST_PER_MS;
	if (cq->allowance > MOST_MS * SHM_COST_PER_MS)
		cq->allowance = MOST_MS * SHM_COST_PER_MS;
}

static void progress(struct shm_cq *cq)
{
	uint64_t now = rwb_now_ms();
	struct shm_qp *q;

	/* Checks the sockets once per timer tick, because a poller that never sleeps must notice a death too. */
	if (now != cq->now_ms) {
		allow(cq, now);
		cq->now_ms = now;
		handle_events(cq, 0);
		check_tears(cq);
	}
	TAILQ_FOREACH(q, &cq->qps, of_cq) {
		if (shm_state(q) != RWF_QPS_RTS) {
			if (shm_state(q) == RWF_QPS_ERR) /* the thread that lets peers in gave it up */
				shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
			continue;
		}
		if (!shm_receive(q))
			shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
		if (q->base.acked != q->base.sends.posted)
			shm_push_waiting(q, now);
		if (atomic_load_explicit(&q->backlog, memory_order_relaxed))
			shm_advertise(q);
	}
	q = TAILQ_FIRST(&cq->qps);
	if (q) {
		TAILQ_REMOVE(&cq->qps, q, of_cq);
		TAILQ_INSERT_TAIL(&cq->qps, q, of_cq);
	}
	shm_cq_check(cq);
}

int shm_poll_cq(rwf_cq *base, struct rwf_wc *wc, int n)
{
	struct shm_cq *cq = (struct shm_cq *)base;

	cq->ready = false;
	progress(cq);
	return rwb_cq_take(&cq->base, wc, n);
}

/* Asks the peers to wake us when senders of this queue can continue. Returns whether one waits. */
static bool arm_senders(struct shm_cq *cq)
{
	struct shm_qp *q;
	bool any = false;

	TAILQ_FOREACH(q, &cq->qps, of_cq) {

		if (q->base.acked == q->base.sends.posted || shm_state(q) != RWF_QPS_RTS)
			continue;
		atomic_store_explicit(&q->mine->rnr_armed, 1, memory_order_relaxed);
		any = true;
	}
	return any;
}

/*
 * Publishes to each peer the count of descriptors at which to wake us. The fence pairs with the one between a sender's publishing
 * and its read of wake_at: either it sees that we sleep, or we see its descriptor.
 */
int shm_req_notify_cq(rwf_cq *base, uint32_t count)
{
	struct shm_cq *cq = (struct shm_cq *)base;
	struct shm_qp *q;

	if (count == 0)
		count = 1;
	for (int pass = 0; pass < 2; pass++) {
		TAILQ_FOREACH(q, &cq->qps, of_cq) {
			uint64_t room = q->base.recv_posted - q->base.received,
				 at = q->base.received + (count < room ? count : room);

			if (room == 0 || shm_state(q) != RWF_QPS_RTS)
				continue;
			if (pass == 0)
				atomic_store_explicit(&q->mine->wake_at, at, memory_order_relaxed);
			else if (atomic_load_explicit(&q->rx[(at - 1) & q->base.recv_mask].seq, memory_order_acquire) == at)
				cq->ready = true;
		}
		atomic_thread_fence(memory_order_seq_cst);
	}
	return 0;
}

static void disarm(struct shm_cq *cq)
{
	struct shm_qp *q;

	TAILQ_FOREACH(q, &cq->qps, of_cq)
		if (shm_state(q) == RWF_QPS_RTS)
			atomic_store_explicit(&q->mine->wake_at, SHM_DISARMED, memory_order_relaxed);
	cq->ready = false;
}

/* Returns the time at which a sleeper must wake by itself to fail a request, in coarse milliseconds, or UINT64_MAX for never. */
static uint64_t next_deadline(const struct shm_cq *cq)
{
	uint64_t first = UINT64_MAX;
	struct shm_qp *q;

	TAILQ_FOREACH(q, &cq->qps, of_cq) {
		uint64_t at = UINT64_MAX;

		if (shm_state(q) == RWF_QPS_RTS && q->stalled_ms)
			at = q->stalled_ms + (q->stalled_on_peer ? q->ack_ms : q->rnr_ms);
		if (atomic_load_explicit(&q->backlog, memory_order_relaxed))
			at = 0; /* the peer's socket was full, and nobody notifies us when it has room */
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

	while (!cq->ready && !base->woken && !cq->base.overrun && rwb_ring_length(&cq->base.ring) == 0) {
		int64_t left = end - (int64_t)rwb_now_ns();
		uint64_t due;

		if (arm_senders(cq)) {
			atomic_thread_fence(memory_order_seq_cst);
			progress(cq);
			if (rwb_ring_length(&cq->base.ring) != 0)
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
		if (rwb_ring_length(&cq->base.ring) == 0 && !base->woken && !cq->base.overrun && (int64_t)rwb_now_ns() >= end) {
			rc = 0;
			break;
		}
	}
	disarm(cq);
	return atomic_exchange(&base->woken, false) || rc;
}
