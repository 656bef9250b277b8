/*
 * The listener. Whoever calls rwf_get_async_event lets passive peers in. A stranger gets a bounded place for a bounded
 * time. Nothing of what it says is believed before its hello has named a queue pair that waits, and proven that it knows the
 * cookie. While no queue pair waits only so many may come: others stay in the kernel, and cost nothing here. Of one address only so
 * many may come to nothing, whoever waits.
 */
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	HELLO_MS = 2000,   /* for a stranger to say whom it wants */
	PARKED_MS = 30000, /* for a queue pair to begin waiting for a peer that knows its cookie */
	PAUSE_MS = 100,    /* without a descriptor to spare */
	UNAWAITED_MS = 5,  /* between connections while no queue pair waits, on average */
};

enum verdict { DROP, KEEP, ADMITTED };

static bool take_event(struct tcp_device *dev, struct rwf_async_event *out)
{
	bool found = false;

	if (atomic_load(&dev->events) == 0)
		return false;
	pthread_mutex_lock(&dev->lock);
	for (uint32_t i = 0; i < TCP_MAX_QP && !found; i++) {
		struct tcp_qp *qp = dev->qps[i];
		uint32_t bits = qp ? atomic_load(&qp->event_bits) : 0;

		if (!bits)
			continue;
		out->type = (uint32_t)__builtin_ctz(bits);
		out->qp_num = qp->head.num;
		atomic_fetch_and(&qp->event_bits, ~(1u << out->type));
		atomic_fetch_sub(&dev->events, 1);
		found = true;
	}
	pthread_mutex_unlock(&dev->lock);
	return found;
}

static void drop(struct tcp_half *half)
{
	close(half->fd);
	half->fd = -1;
}

/* Finds the place for a newcomer: a free one, else that of the oldest stranger, else that of the oldest parked peer. */
static struct tcp_half *place(struct tcp_device *dev)
{
	struct tcp_half *worst = NULL;

	for (int i = 0; i < TCP_MAX_HALF_OPEN; i++) {
		struct tcp_half *half = &dev->half[i];
		bool stranger = half->have < TCP_HELLO_LEN;

		if (half->fd < 0)
			return half;
		if (!worst || (stranger && worst->have == TCP_HELLO_LEN) ||
		    (stranger == (worst->have < TCP_HELLO_LEN) && half->deadline_ns < worst->deadline_ns))
			worst = half;
	}
	drop(worst);
	return worst;
}

static void accept_new(struct tcp_device *dev, uint64_t now)
{
	dev->unawaited_paused_ns = now;
	for (int i = 0; i < TCP_MAX_HALF_OPEN; i++) {
		struct sockaddr_storage from = {0};
		socklen_t len = sizeof from;
		int fd = accept4(dev->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct tcp_half *half;

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
				dev->accept_paused_ns = now + PAUSE_MS * 1000000ull;
			return;
		}
		dev->unawaited_paused_ns += UNAWAITED_MS * 1000000ull;
		if (!tcp_may_enter(dev, &from, now)) {
			close(fd);
			continue;
		}
		half = place(dev);
		half->fd = fd;
		half->from = from;
		half->have = 0;
		half->deadline_ns = now + HELLO_MS * 1000000ull;
	}
}

/* Hands the connection to the queue pair's owner, who finds the socket once it looks. */
static enum verdict admit(struct tcp_qp *qp, struct tcp_half *half, const struct tcp_hello *hello)
{
	struct tcp_device *dev = qp->dev;
	struct tcp_hello reply = {
		.kind = TCP_HELLO_ACCEPT, .to_qp = hello->from_qp, .from_qp = qp->head.num, .window = dev->window};
	uint8_t bytes[TCP_HELLO_LEN];

	if (hello->from_qp != qp->join.peer.qp_num || tcp_no_delay(half->fd))
		return DROP;
	reply.posted = atomic_load(&qp->in.posted);
	tcp_hello_encode(&reply, qp->join.peer.cookie, bytes);
	if (send(half->fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof bytes)
		return DROP;
	qp->out.window = hello->window;
	qp->out.peer_posted = hello->posted;
	qp->in.told_posted = reply.posted;
	qp->join.waiting = false;
	dev->waiting--;
	atomic_store_explicit(&qp->join.arrived_fd, half->fd, memory_order_release);
	atomic_store(&qp->head.state, RWF_QPS_RTS);
	tcp_raise(qp, RWF_EVENT_QP_ESTABLISHED);
	tcp_cq_attention(qp->send_cq);
	if (qp->recv_cq != qp->send_cq)
		tcp_cq_attention(qp->recv_cq);
	half->fd = -1;
	tcp_entered(dev, &half->from);
	return ADMITTED;
}

static enum verdict examine(struct tcp_device *dev, struct tcp_half *half)
{
	enum verdict verdict = DROP;
	struct tcp_hello hello;
	struct tcp_qp *qp;

	if (tcp_hello_decode(&hello, half->hello) || hello.kind != TCP_HELLO_REQUEST)
		return DROP;
	pthread_mutex_lock(&dev->lock);
	qp = dev->qps[hello.to_qp % TCP_MAX_QP];
	if (qp && qp->head.num == hello.to_qp && tcp_hello_proven(half->hello, qp->cookie)) {
		if (qp->join.waiting)
			verdict = admit(qp, half, &hello);
		else if (qp->head.state == RWF_QPS_INIT)
			verdict = KEEP;
	}
	pthread_mutex_unlock(&dev->lock);
	return verdict;
}

/* Reads what a stranger says. A peer that knows the cookie may stay until its queue pair waits for it. */
static void listen_to(struct tcp_device *dev, struct tcp_half *half, uint64_t now, bool readable)
{
	bool stranger = half->have < TCP_HELLO_LEN;
	enum verdict verdict = KEEP;

	if (readable) {
		/* A parked peer has nothing more to say: it can only hang up. */
		ssize_t n = stranger ? read(half->fd, half->hello + half->have, TCP_HELLO_LEN - half->have) : 0;

		if (n > 0)
			half->have += (uint32_t)n;
		else if (n == 0 || (errno != EAGAIN && errno != EINTR))
			verdict = DROP;
	}
	if (verdict == KEEP && half->have == TCP_HELLO_LEN) {
		verdict = examine(dev, half);
		if (verdict == KEEP && stranger)
			half->deadline_ns = now + PARKED_MS * 1000000ull;
	}
	if (verdict == DROP || (verdict == KEEP && now >= half->deadline_ns))
		drop(half);
}

/* Fails queue pairs whose peer did not come. Returns the next such deadline, at most until. */
static uint64_t expire_passive(struct tcp_device *dev, uint64_t now, uint64_t until)
{
	pthread_mutex_lock(&dev->lock);
	for (uint32_t i = 0; i < TCP_MAX_QP && dev->waiting; i++) {
		struct tcp_qp *qp = dev->qps[i];

		if (!qp || !qp->join.waiting)
			continue;
		if (now < qp->join.deadline_ns) {
			until = qp->join.deadline_ns < until ? qp->join.deadline_ns : until;
			continue;
		}
		qp->join.waiting = false;
		dev->waiting--;
		atomic_store(&qp->head.state, RWF_QPS_ERR);
		tcp_raise(qp, RWF_EVENT_QP_FATAL);
		tcp_cq_attention(qp->send_cq);
		if (qp->recv_cq != qp->send_cq)
			tcp_cq_attention(qp->recv_cq);
	}
	pthread_mutex_unlock(&dev->lock);
	return until;
}

/* Returns until when new connections stay in the kernel. */
static uint64_t paused_until(struct tcp_device *dev)
{
	uint64_t until = dev->accept_paused_ns;

	pthread_mutex_lock(&dev->lock);
	if (!dev->waiting && dev->unawaited_paused_ns > until)
		until = dev->unawaited_paused_ns;
	pthread_mutex_unlock(&dev->lock);
	return until;
}

/* Waits, at most until, for something to do, and does it. */
static void serve(struct tcp_device *dev, uint64_t now, uint64_t until)
{
	struct pollfd fds[2 + TCP_MAX_HALF_OPEN] = {{.fd = dev->event_fd, .events = POLLIN},
						    {.fd = dev->listen_fd, .events = POLLIN}};
	struct tcp_half *polled[TCP_MAX_HALF_OPEN];
	nfds_t n = 2; /* only places in use: more than the limit on open files is EINVAL */
	uint64_t paused = paused_until(dev);

	until = tcp_keep_out(dev, now, expire_passive(dev, now, until));
	if (now < paused) {
		fds[1].fd = -1;
		until = paused < until ? paused : until;
	}
	for (int i = 0; i < TCP_MAX_HALF_OPEN; i++) {
		struct tcp_half *half = &dev->half[i];

		if (half->fd < 0)
			continue;
		polled[n - 2] = half;
		fds[n++] = (struct pollfd){.fd = half->fd, .events = half->have < TCP_HELLO_LEN ? POLLIN : POLLRDHUP};
		if (half->deadline_ns < until)
			until = half->deadline_ns;
	}
	if (rwb_poll(fds, n, until > now ? until - now : 0) < 0)
		return;
	now = rwb_now_ns();
	if (fds[0].revents)
		rwb_clear(dev->event_fd);
	for (nfds_t i = 2; i < n; i++)
		listen_to(dev, polled[i - 2], now, fds[i].revents != 0);
	if (fds[1].revents)
		accept_new(dev, now);
}

int tcp_get_async_event(rwf_device *head, int timeout_ms, struct rwf_async_event *out)
{
	struct tcp_device *dev = (struct tcp_device *)head;
	uint64_t now = rwb_now_ns(), until = now + (timeout_ms > 0 ? (uint64_t)timeout_ms * 1000000 : 0);
	struct timespec ts = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
	bool found;

	/* A second caller waits its turn: there is one listener to serve. */
	if (pthread_mutex_clocklock(&dev->accept_lock, CLOCK_MONOTONIC, &ts))
		return 0;
	for (;; now = rwb_now_ns()) {
		found = take_event(dev, out);
		if (found)
			break;
		serve(dev, now, until);
		if (now >= until) {
			found = take_event(dev, out);
			break;
		}
	}
	pthread_mutex_unlock(&dev->accept_lock);
	return found;
}
