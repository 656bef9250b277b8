/* Polling and waiting, which move the data of a completion queue's queue pairs. */
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

enum {
	EVENTS = 64,
	/* The sockets are checked at least this often, however busy the queue pairs known to have work are. */
	ROUNDS_PER_EVENTS = 8,
	IDLE_POLLS_PER_EVENTS = 8, /* empty polls check only this often, because it is a system call */
	/* Empty polls, or time asleep, before an acknowledgement. Until then a reply may carry it for nothing. */
	IDLE_POLLS = 32,
	IDLE_US = 50,
	ROUNDS_PER_ACKNOWLEDGEMENT = 64, /* where other queue pairs keep the queue from being idle */
	ROUNDS_PER_CLOCK = 16,
	/* The time between checks of deadlines, and that after which a quiet host is probed. */
	LOOK_MS = 50,
	QUIET_MS = 300,
	IDLE_FRAMES = 64, /* that a peer may send beyond one every LOOK_MS */
	/* A wait for several completions ends this long after the first one. */
	GATHER_US = 1000,
};

/* Flushes a queue pair. Returns true if it must be served again, after a poll. */
static bool flush(struct tcp_qp *qp)
{
	struct tcp_cq *cq = qp->cq;
	bool more = !cq->base.overrun && rwb_flush(&cq->base, &qp->base);

	cq->errors |= rwb_ring_length(&cq->base.ring) != 0;
	return more;
}

/* Serves a queue pair once. Returns true while there is more to do. */
static bool serve(struct tcp_qp *qp)
{
	bool more;

	if (qp->base.head.state == RWF_QPS_ERR)
		return flush(qp);
	if (qp->fd < 0)
		return false;
	tcp_transmit(qp);
	more = tcp_receive(qp);
	tcp_transmit(qp);
	return more;
}

/* Takes what another thread changed before it woke the queue: peers that arrived, or did not in time. */
static void take_changes(struct tcp_cq *cq)
{
	struct tcp_qp *qp;

	rwb_clear(cq->base.head.wake_fd);
	LIST_FOREACH(qp, &cq->qps, of_cq) {
		tcp_adopt(qp);
		if (qp->base.head.state == RWF_QPS_ERR)
			tcp_qp_ready(qp);
	}
}

static void take_events(struct tcp_cq *cq)
{
	struct epoll_event events[EVENTS];
	int n = epoll_wait(cq->base.epoll_fd, events, EVENTS, 0);

	for (int i = 0; i < n; i++) {
		struct tcp_qp *qp = events[i].data.ptr;
		uint32_t what = events[i].events;

		if (!qp) {
			take_changes(cq);
			continue;
		}
		if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			qp->in.ready = true;
		if (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			qp->in.hung_up = true;
		if (what & (EPOLLOUT | EPOLLHUP | EPOLLERR))
			qp->out.blocked = false;
		tcp_qp_ready(qp);
	}
}

static void acknowledge_all(struct tcp_cq *cq)
{
	struct tcp_qp *qp;

	if (!cq->due)
		return;
	cq->due = false;
	LIST_FOREACH(qp, &cq->qps, of_cq)
		tcp_acknowledge(qp);
}

/*
 * Fails a queue pair whose peer's host has not answered for the acknowledgement timeout. A quiet connection gets an empty frame
 * now and then, because the host must answer that. The kernel repeats it if it is lost.
 */
static void watch_host(struct tcp_qp *qp, uint64_t now)
{
	bool active = qp->in.placed != qp->host.placed;
	uint32_t last_answer_ms = 0;

	qp->host.placed = qp->in.placed;
	if (active || qp->base.head.state != RWF_QPS_RTS || qp->fd < 0) {
		qp->host.silent_ns = 0;
	} else if (tcp_owes_answer(qp->fd, &last_answer_ms)) {
		if (!qp->host.silent_ns || now - qp->host.silent_ns > (uint64_t)last_answer_ms * RWB_NS_PER_MS)
			qp->host.silent_ns = now;
		if (now - qp->host.silent_ns >= (uint64_t)qp->ack_timeout_ms * RWB_NS_PER_MS)
			tcp_qp_error(qp, RWF_WC_RETRY_EXC_ERR);
	} else {
		qp->host.silent_ns = 0;
		if (last_answer_ms >= QUIET_MS) {
			qp->out.ack_now = true;
			tcp_transmit(qp);
		}
	}
}

/* Fails a queue pair whose peer sends too many empty frames. A quiet one sends a few in a second. */
static void watch_frames(struct tcp_qp *qp, uint64_t now)
{
	uint64_t allowed = (now - qp->host.looked_ns) / (LOOK_MS * RWB_NS_PER_MS) + 1;

	qp->host.looked_ns = now;
	qp->in.idle -= allowed < qp->in.idle ? (uint32_t)allowed : qp->in.idle;
	if (qp->in.idle > IDLE_FRAMES)
		tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
}

/* Fails queue pairs whose send found no posted receive in time, whose peer's host is lost, or whose peer sends empty frames. */
static void check_deadlines(struct tcp_cq *cq, uint64_t now)
{
	struct tcp_qp *qp;

	if (now < cq->look_ns)
		return;
	cq->look_ns = now + LOOK_MS * 1000000ull;
	LIST_FOREACH(qp, &cq->qps, of_cq) {
		if (qp->out.rnr_deadline_ns && now >= qp->out.rnr_deadline_ns)
			tcp_qp_error(qp, RWF_WC_RNR_RETRY_EXC_ERR);
		else if (qp->out.rnr_deadline_ns && qp->out.rnr_deadline_ns < cq->look_ns)
			cq->look_ns = qp->out.rnr_deadline_ns;
		watch_host(qp, now);
		watch_frames(qp, now);
	}
}

/*
 * Serves every queue pair with work once. If none has work, and look is set because the caller would sleep, it checks the sockets
 * first.
 */
static void progress(struct tcp_cq *cq, bool look)
{
	struct tcp_qps served = TAILQ_HEAD_INITIALIZER(served);
	struct tcp_qp *qp;

	cq->rounds++;
	if (TAILQ_EMPTY(&cq->ready) ? look || cq->idle % IDLE_POLLS_PER_EVENTS == 0 : cq->rounds % ROUNDS_PER_EVENTS == 0)
		take_events(cq);
	cq->idle = TAILQ_EMPTY(&cq->ready) ? cq->idle + 1 : 0;
	TAILQ_CONCAT(&served, &cq->ready, ready);
	while ((qp = TAILQ_FIRST(&served))) {
		TAILQ_REMOVE(&served, qp, ready);
		qp->queued = false;
		if (serve(qp))
			tcp_qp_ready(qp);
	}
	if (cq->idle == IDLE_POLLS || cq->rounds % ROUNDS_PER_ACKNOWLEDGEMENT == 0)
		acknowledge_all(cq);
	if (cq->rounds % ROUNDS_PER_CLOCK == 0)
		check_deadlines(cq, rwb_now_ns());
}

int tcp_poll_cq(rwf_cq *head, struct rwf_wc *wc, int n)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;
	int got;

	if (rwb_ring_length(&cq->base.ring) == 0 && !cq->base.overrun) {
		tcp_enter(cq);
		progress(cq, false);
		tcp_leave(cq);
	}
	got = rwb_cq_take(&cq->base, wc, n);
	if (rwb_ring_length(&cq->base.ring) == 0)
		cq->errors = false;
	return got;
}

/* While the owner polls, acknowledgements wait for a reply that carries them. Here none may come for some time. */
void tcp_rest_cq(rwf_cq *head)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;
	struct tcp_qp *qp;

	if (!cq->solicited)
		return;
	cq->solicited = false;
	tcp_enter(cq);
	LIST_FOREACH(qp, &cq->qps, of_cq)
		if (qp->in.solicited)
			tcp_acknowledge(qp);
	tcp_leave(cq);
}

int tcp_req_notify_cq(rwf_cq *head, uint32_t count)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;

	cq->armed = count == 0 ? 1 : count < cq->base.ring.limit ? count : cq->base.ring.limit;
	return 0;
}

/* Sleeps until a socket is ready, a wake, or the time until. */
static void sleep_until(struct tcp_cq *cq, uint64_t now, uint64_t until)
{
	struct pollfd pfd = {.fd = cq->base.epoll_fd, .events = POLLIN};

	rwb_poll(&pfd, 1, until - now);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return b && b < a ? b : a;
}

int tcp_wait_cq(rwf_cq *head, int64_t timeout_us)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;
	uint64_t now = rwb_now_ns(), until = now + (timeout_us > 0 ? (uint64_t)timeout_us * 1000 : 0), gathered = 0, quiet = 0;
	uint32_t wanted = cq->armed;

	for (cq->armed = 1;; now = rwb_now_ns()) {
		tcp_enter(cq);
		progress(cq, true);
		if (!quiet && cq->due)
			quiet = now + IDLE_US * 1000;
		if (now >= until || (quiet && now >= quiet)) {
			acknowledge_all(cq);
			quiet = 0;
		}
		check_deadlines(cq, now);
		tcp_leave(cq);
		if (atomic_exchange(&head->woken, false) || cq->base.overrun || rwb_ring_length(&cq->base.ring) >= wanted ||
		    cq->errors)
			return 1;
		if (rwb_ring_length(&cq->base.ring) && !gathered)
			gathered = now + GATHER_US * 1000;
		if (now >= earlier(until, gathered))
			return rwb_ring_length(&cq->base.ring) != 0;
		if (TAILQ_EMPTY(&cq->ready))
			sleep_until(cq, now, earlier(earlier(earlier(until, gathered), cq->look_ns), quiet));
	}
}
