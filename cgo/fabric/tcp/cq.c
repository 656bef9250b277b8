/* Completion queues: where a queue pair's sockets make progress, and where its completions are taken. */
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	EVENTS = 64,
	/* The sockets are asked at least this often, however busy the queue pairs known to have work are. */
	ROUNDS_PER_EVENTS = 8,
	IDLE_POLLS_PER_EVENTS = 8, /* and no oftener by polls that find nothing: asking is a system call */
	/* Empty polls, or time asleep, before peers are told what has arrived: a reply would have told them for nothing. */
	IDLE_POLLS = 32,
	IDLE_US = 50,
	ROUNDS_PER_ACKNOWLEDGEMENT = 64, /* where other queue pairs keep the queue from being idle */
	ROUNDS_PER_CLOCK = 16,
	/* How often deadlines are looked after, and how long a peer's host may be quiet before it is asked to answer. */
	LOOK_MS = 50,
	QUIET_MS = 300,
	/* A wait for several completions gives up this long after the first one came. */
	GATHER_US = 1000,
};

int tcp_create_cq(rwf_device *head, uint32_t cqe, rwf_cq **out)
{
	struct tcp_device *dev = (struct tcp_device *)head;
	struct epoll_event ev = {.events = EPOLLIN};
	struct tcp_cq *cq = calloc(1, sizeof *cq);
	uint32_t size = 1;

	if (!cq)
		return rwf_fail(ENOMEM, "create completion queue: out of memory");
	while (size < cqe)
		size *= 2;
	cq->head.ops = &rwf_tcp_ops;
	cq->head.dev = head;
	cq->cap = cqe;
	cq->mask = size - 1;
	cq->armed = 1;
	LIST_INIT(&cq->links);
	TAILQ_INIT(&cq->ready);
	cq->ring = calloc(size, sizeof *cq->ring);
	cq->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	cq->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_lock(&dev->mr_lock);
	if (cq->ring && cq->epoll_fd >= 0 && cq->wake_fd >= 0 && dev->cq_count < TCP_MAX_CQ &&
	    epoll_ctl(cq->epoll_fd, EPOLL_CTL_ADD, cq->wake_fd, &ev) == 0) {
		LIST_INSERT_HEAD(&dev->cqs, cq, all);
		dev->cq_count++;
		pthread_mutex_unlock(&dev->mr_lock);
		*out = &cq->head;
		return 0;
	}
	int err = !cq->ring ? ENOMEM : dev->cq_count >= TCP_MAX_CQ ? ENOSPC : errno;

	pthread_mutex_unlock(&dev->mr_lock);
	if (cq->epoll_fd >= 0)
		close(cq->epoll_fd);
	if (cq->wake_fd >= 0)
		close(cq->wake_fd);
	free(cq->ring);
	free(cq);
	return rwf_fail(err, "create completion queue: %s", strerror(err));
}

int tcp_destroy_cq(rwf_cq *head)
{
	struct tcp_device *dev = (struct tcp_device *)head->dev;
	struct tcp_cq *cq = (struct tcp_cq *)head;

	if (!LIST_EMPTY(&cq->links))
		return rwf_fail(EBUSY, "destroy completion queue: a queue pair uses it");
	pthread_mutex_lock(&dev->mr_lock);
	LIST_REMOVE(cq, all);
	dev->cq_count--;
	pthread_mutex_unlock(&dev->mr_lock);
	close(cq->epoll_fd);
	close(cq->wake_fd);
	free(cq->ring);
	free(cq);
	return 0;
}

void tcp_cq_attach(struct tcp_cq *cq, struct tcp_link *link)
{
	link->cq = cq;
	LIST_INSERT_HEAD(&cq->links, link, all);
}

/* Drops the queue pair's completions too. */
void tcp_cq_detach(struct tcp_link *link)
{
	struct tcp_cq *cq = link->cq;
	uint32_t kept = cq->first;

	LIST_REMOVE(link, all);
	if (link->queued)
		TAILQ_REMOVE(&cq->ready, link, ready);
	for (uint32_t i = cq->first; i != cq->last; i++)
		if (cq->ring[i & cq->mask].qp != link->qp)
			cq->ring[kept++ & cq->mask] = cq->ring[i & cq->mask];
	cq->last = kept;
}

/* Edge-triggered: a queue pair remembers by itself that there is more to read, or that the socket is full. */
int tcp_cq_watch(struct tcp_link *link, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = link};

	return epoll_ctl(link->cq->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

void tcp_cq_ready(struct tcp_link *link)
{
	if (link->queued)
		return;
	link->queued = true;
	TAILQ_INSERT_TAIL(&link->cq->ready, link, ready);
}

static void interrupt(struct tcp_cq *cq)
{
	uint64_t one = 1;

	/* The only failure is a counter already at its end: then the interrupt is there already. */
	(void)!write(cq->wake_fd, &one, sizeof one);
}

int tcp_wake_cq(rwf_cq *head)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;

	atomic_store(&cq->woken, 1);
	interrupt(cq);
	return 0;
}

/* From any thread: makes the owner look at the state of its queue pairs. */
void tcp_cq_attention(struct tcp_cq *cq)
{
	atomic_store(&cq->attention, 1);
	interrupt(cq);
}

bool tcp_cq_full(const struct tcp_cq *cq)
{
	return cq->last - cq->first == cq->cap;
}

void tcp_cq_push(struct tcp_cq *cq, struct tcp_qp *qp, const struct rwf_wc *wc, uint32_t upto)
{
	struct tcp_link *link;

	if (cq->overrun)
		return;
	if (tcp_cq_full(cq)) {
		cq->overrun = true;
		tcp_raise(qp, RWF_EVENT_CQ_ERR);
		LIST_FOREACH (link, &cq->links, all)
			tcp_qp_error(link->qp, RWF_WC_WR_FLUSH_ERR);
		return;
	}
	cq->errors |= wc->status != RWF_WC_SUCCESS;
	cq->ring[cq->last++ & cq->mask] = (struct tcp_completion){.wc = *wc, .qp = qp, .upto = upto};
}

static void serve_attention(struct tcp_cq *cq)
{
	struct tcp_link *link;

	atomic_store(&cq->attention, 0);
	LIST_FOREACH (link, &cq->links, all) {
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
			uint64_t interrupts;

			(void)!read(cq->wake_fd, &interrupts, sizeof interrupts);
			continue;
		}
		if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			link->qp->rx_ready = true;
		if (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			link->qp->hung_up = true;
		if (what & (EPOLLOUT | EPOLLHUP | EPOLLERR))
			link->qp->tx_blocked = false;
		tcp_cq_ready(link);
	}
}

static void acknowledge_all(struct tcp_cq *cq)
{
	struct tcp_link *link;

	if (!cq->due)
		return;
	cq->due = false;
	LIST_FOREACH (link, &cq->links, all)
		tcp_acknowledge(link->qp);
}

/*
 * Whether the peer's host has been silent for the acknowledgement timeout while it should have answered. So that it has
 * something to answer, a quiet connection gets an empty frame now and then, which the kernel repeats where it is lost.
 */
static bool lost(struct tcp_qp *qp, uint64_t now)
{
	bool heard = qp->rx_placed != qp->rx_looked;
	uint32_t last_answer_ms = 0;

	qp->rx_looked = qp->rx_placed;
	if (heard || qp->head.state != RWF_QPS_RTS || qp->fd < 0 || !tcp_owes_answer(qp->fd, &last_answer_ms)) {
		qp->silent_ns = 0;
		if (last_answer_ms >= QUIET_MS) {
			qp->ack_now = true;
			tcp_transmit(qp);
		}
		return false;
	}
	if (!qp->silent_ns || now - qp->silent_ns > last_answer_ms * 1000000ull)
		qp->silent_ns = now;
	return now - qp->silent_ns >= qp->ack_timeout_ms * 1000000ull;
}

/* Fails queue pairs whose send found no posted receive in time, or whose peer's host is lost. */
static void look_after(struct tcp_cq *cq, uint64_t now)
{
	struct tcp_link *link;

	if (now < cq->look_ns)
		return;
	cq->look_ns = now + LOOK_MS * 1000000ull;
	LIST_FOREACH (link, &cq->links, all) {
		struct tcp_qp *qp = link->qp;

		if (qp->send_cq != cq)
			continue;
		if (qp->rnr_deadline_ns && now >= qp->rnr_deadline_ns)
			tcp_qp_error(qp, RWF_WC_RNR_RETRY_EXC_ERR);
		else if (qp->rnr_deadline_ns && qp->rnr_deadline_ns < cq->look_ns)
			cq->look_ns = qp->rnr_deadline_ns;
		if (lost(qp, now))
			tcp_qp_error(qp, RWF_WC_RETRY_EXC_ERR);
	}
}

/* One turn for every queue pair with work; who will sleep without work must look for events first. */
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
		if (tcp_qp_progress(link))
			tcp_cq_ready(link);
	}
	if (cq->idle == IDLE_POLLS || cq->rounds % ROUNDS_PER_ACKNOWLEDGEMENT == 0)
		acknowledge_all(cq);
	if (cq->rounds % ROUNDS_PER_CLOCK == 0)
		look_after(cq, tcp_now_ns());
}

static int overrun_error(const struct tcp_cq *cq)
{
	return rwf_fail(EOVERFLOW, "completion queue overran its %u entries: size it for every signaled send and posted receive",
			cq->cap);
}

int tcp_poll_cq(rwf_cq *head, struct rwf_wc *wc, int n)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;
	int got = 0;

	if (cq->first == cq->last && !cq->overrun) {
		tcp_enter(cq);
		progress(cq, false);
		tcp_leave(cq);
	}
	if (cq->overrun)
		return overrun_error(cq);
	while (got < n && cq->first != cq->last) {
		const struct tcp_completion *c = &cq->ring[cq->first++ & cq->mask];

		wc[got++] = c->wc;
		if (c->wc.opcode == RWF_WC_SEND)
			c->qp->sq_free = c->upto;
		else
			c->qp->rq_free = c->upto;
	}
	if (cq->first == cq->last)
		cq->errors = false;
	return got;
}

int tcp_req_notify_cq(rwf_cq *head, uint32_t count)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;

	cq->armed = count == 0 ? 1 : count < cq->cap ? count : cq->cap;
	return 0;
}

/* Sleeps until a socket or a wake has news, or until the time has come. */
static void sleep_until(struct tcp_cq *cq, uint64_t now, uint64_t until)
{
	struct pollfd pfd = {.fd = cq->epoll_fd, .events = POLLIN};
	struct timespec ts = {.tv_sec = (time_t)((until - now) / 1000000000u), .tv_nsec = (long)((until - now) % 1000000000u)};

	ppoll(&pfd, 1, &ts, NULL);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return b && b < a ? b : a;
}

int tcp_wait_cq(rwf_cq *head, int64_t timeout_us)
{
	struct tcp_cq *cq = (struct tcp_cq *)head;
	uint64_t now = tcp_now_ns(), until = now + (timeout_us > 0 ? (uint64_t)timeout_us * 1000 : 0), gathered = 0, quiet = 0;
	uint32_t wanted = cq->armed;

	for (cq->armed = 1;; now = tcp_now_ns()) {
		tcp_enter(cq);
		progress(cq, true);
		if (!quiet && cq->due)
			quiet = now + IDLE_US * 1000;
		if (now >= until || (quiet && now >= quiet)) {
			acknowledge_all(cq);
			quiet = 0;
		}
		look_after(cq, now);
		tcp_leave(cq);
		if (cq->overrun)
			return overrun_error(cq);
		if (atomic_exchange(&cq->woken, 0) || cq->last - cq->first >= wanted || cq->errors)
			return 1;
		if (cq->last != cq->first && !gathered)
			gathered = now + GATHER_US * 1000;
		if (now >= earlier(until, gathered))
			return cq->last != cq->first;
		if (TAILQ_EMPTY(&cq->ready))
			sleep_until(cq, now, earlier(earlier(earlier(until, gathered), cq->look_ns), quiet));
	}
}
