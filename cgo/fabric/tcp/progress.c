/* Polling and waiting, where the sockets of a completion queue's queue pairs make progress. */
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

enum {
	EVENTS = 64,
	/* The sockets are checked at least this often, however busy the queue pairs known to have work are. */
	ROUNDS_PER_EVENTS = 8,
	IDLE_POLLS_PER_EVENTS = 8, /* polls that find nothing check no oftener: it is a system call */
	/* Empty polls, or time asleep, before peers learn what has arrived. Until then a reply may carry it for nothing. */
	IDLE_POLLS = 32,
	IDLE_US = 50,
	ROUNDS_PER_ACKNOWLEDGEMENT = 64, /* where other queue pairs keep the queue from being idle */
	ROUNDS_PER_CLOCK = 16,
	/* How often deadlines are checked, and how long a peer's host may be quiet before it is probed. */
	LOOK_MS = 50,
	QUIET_MS = 300,
	/* A wait for several completions gives up this long after the first one came. */
	GATHER_US = 1000,
};

/*
 * Flushes the queue pair; the first outstanding send carries the error. What does not fit the queue waits until it is
 * polled. Returns true while something is left.
 */
static bool flush(struct tcp_qp *qp, struct tcp_cq *cq)
{
	struct rwf_wc wc = {.qp_num = qp->head.num};

	while (cq == qp->send_cq && qp->out.acked != qp->out.sends.posted) {
		if (tcp_cq_full(cq))
			return true;
		wc.wr_id = rwb_send(&qp->out.sends, qp->out.acked++)->wr_id;
		wc.status = (uint16_t)qp->out.error;
		wc.opcode = RWF_WC_SEND;
		qp->out.error = RWF_WC_WR_FLUSH_ERR;
		tcp_cq_push(cq, qp, &wc, qp->out.acked);
	}
	while (cq == qp->recv_cq && qp->in.used != atomic_load_explicit(&qp->in.posted, memory_order_relaxed)) {
		if (tcp_cq_full(cq))
			return true;
		wc.wr_id = qp->in.wr_ids[qp->in.used++ & qp->in.mask];
		wc.status = RWF_WC_WR_FLUSH_ERR;
		wc.opcode = RWF_WC_RECV_IMM;
		tcp_cq_push(cq, qp, &wc, qp->in.used);
	}
	return false;
}

/* Gives a queue pair one turn. Returns true while there is more to do. */
static bool serve(struct tcp_link *link)
{
	struct tcp_qp *qp = link->qp;
	bool more;

	if (qp->head.state == RWF_QPS_ERR)
		return !link->cq->overrun && flush(qp, link->cq);
	if (qp->fd < 0)
		return false;
	tcp_transmit(qp);
	more = tcp_receive(qp);
	tcp_transmit(qp);
	return more;
}

static void serve_attention(struct tcp_cq *cq)
{
	struct tcp_link *link;

	atomic_store(&cq->attention, 0);
	LIST_FOREACH(link, &cq->links, all)
	{
		tcp_adopt(link->qp);
		if (link->qp->head.state == RWF_QPS_ERR)
			tcp_cq_ready(link);
	}
}

static void take_events(struct tcp_cq *cq)
{
	struct epoll_event events[EVENTS];
	int n = epoll_wait(cq->epoll_fd, events, EVENTS, 0);

	for (int i = 0; i < n; i++) {
		struct tcp_link *link = events[i].data.ptr;
		uint32_t what = events[i].events;

		if (!link) {
			rwb_clear(cq->wake_fd);
			continue;
		}
		if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			link->qp->in.ready = true;
		if (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			link->qp->in.hung_up = true;
		if (what & (EPOLLOUT | EPOLLHUP | EPOLLERR))
			link->qp->out.blocked = false;
		tcp_cq_ready(link);
	}
}

static void acknowledge_all(struct tcp_cq *cq)
{
	struct tcp_link *link;

	if (!cq->due)
		return;
	cq->due = false;
	LIST_FOREACH(link, &cq->links, all)
	tcp_acknowledge(link->qp);
}

/*
 * Fails a queue pair whose peer's host has been silent for the acknowledgement timeout while it should have answered. So that
 * it has something to answer, a quiet connection gets an empty frame now and then, which the kernel repeats where it is lost.
 */
static void watch_host(struct tcp_qp *qp, uint64_t now)
{
	bool heard = qp->in.placed != qp->host.placed;
	uint32_t last_answer_ms = 0;

	qp->host.placed = qp->in.placed;
	if (heard || qp->head.state != RWF_QPS_RTS || qp->fd < 0) {
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

/* Fails queue pairs whose send found no posted receive in time, or whose peer's host is lost. */
static void check_deadlines(struct tcp_cq *cq, uint64_t now)
{
	struct tcp_link *link;

	if (now < cq->look_ns)
		return;
	cq->look_ns = now + LOOK_MS * 1000000ull;
	LIST_FOREACH(link, &cq->links, all)
	{
		struct tcp_qp *qp = link->qp;

		if (qp->send_cq != cq)
			continue;
		if (qp->out.rnr_deadline_ns && now >= qp->out.rnr_deadline_ns)
			tcp_qp_error(qp, RWF_WC_RNR_RETRY_EXC_ERR);
		else if (qp->out.rnr_deadline_ns && qp->out.rnr_deadline_ns < cq->look_ns)
			cq->look_ns = qp->out.rnr_deadline_ns;
		watch_host(qp, now);
	}
}

/*
 * Gives every queue pair with work one turn. With look it checks the sockets first if there is none: the caller would
 * sleep.
 */
static void progress(struct tcp_cq *cq, bool look)
{
	struct tcp_links turn = TAILQ_HEAD_INITIALIZER(turn);
	struct tcp_link *link;

	cq->rounds++;
	if (atomic_load_explicit(&cq->attention, memory_order_acquire))
		serve_attention(cq);
	if (TAILQ_EMPTY(&cq->ready) ? look || cq->idle % IDLE_POLLS_PER_EVENTS == 0 : cq->rounds % ROUNDS_PER_EVENTS == 0)
		take_events(cq);
	cq->idle = TAILQ_EMPTY(&cq->ready) ? cq->idle + 1 : 0;
	TAILQ_CONCAT(&turn, &cq->ready, ready);
	while ((link = TAILQ_FIRST(&turn))) {
		TAILQ_REMOVE(&turn, link, ready);
		link->queued = false;
		if (serve(link))
			tcp_cq_ready(link);
	}
	if (cq->idle == IDLE_POLLS || cq->rounds % ROUNDS_PER_ACKNOWLEDGEMENT == 0)
		acknowledge_all(cq);
	if (cq->rounds % ROUNDS_PER_CLOCK == 0)
		check_deadlines(cq, rwb_now_ns());
}

static int overrun_error(const struct tcp_cq *cq)
{
	return rwf_fail(EOVERFLOW, "completion queue overran its %u entries: size it for every signaled send and posted receive",
			cq->ring.limit);
}

int tcp_poll_cq(rwf_cq *head, struct rwf_wc *wc, int n)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;
	const struct rwb_completion *c;
	int got = 0;

	if (rwb_ring_length(&cq->ring) == 0 && !cq->overrun) {
		tcp_enter(cq);
		progress(cq, false);
		tcp_leave(cq);
	}
	if (cq->overrun)
		return overrun_error(cq);
	while (got < n && (c = rwb_ring_pop(&cq->ring))) {
		struct tcp_qp *qp = (struct tcp_qp *)c->qp;

		wc[got++] = c->wc;
		if (c->wc.opcode == RWF_WC_SEND)
			qp->out.sends.freed = c->done;
		else
			qp->in.freed = (uint32_t)c->done;
	}
	if (rwb_ring_length(&cq->ring) == 0)
		cq->errors = false;
	return got;
}

int tcp_req_notify_cq(rwf_cq *head, uint32_t count)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;

	cq->armed = count == 0 ? 1 : count < cq->ring.limit ? count : cq->ring.limit;
	return 0;
}

/* Sleeps until a socket or a wake has news, or until the time has come. */
static void sleep_until(struct tcp_cq *cq, uint64_t now, uint64_t until)
{
	struct pollfd pfd = {.fd = cq->epoll_fd, .events = POLLIN};

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
		if (cq->overrun)
			return overrun_error(cq);
		if (atomic_exchange(&cq->woken, 0) || rwb_ring_length(&cq->ring) >= wanted || cq->errors)
			return 1;
		if (rwb_ring_length(&cq->ring) && !gathered)
			gathered = now + GATHER_US * 1000;
		if (now >= earlier(until, gathered))
			return rwb_ring_length(&cq->ring) != 0;
		if (TAILQ_EMPTY(&cq->ready))
			sleep_until(cq, now, earlier(earlier(earlier(until, gathered), cq->look_ns), quiet));
	}
}
