/*
 * Provider shm: connections. The active side makes the shared memory, dials the passive device's listener and greets with
 * both queue pairs' cookies. The passive side lets it in by shm_get_async_event, on whatever thread calls that.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
enum { PAUSE_MS = 100 }; /* without a descriptor to spare, before the next try */
static const uint8_t ACCEPT = 'A';

/* Both sides compute the same. The ring toward the passive side comes first. */
static size_t shared_len(uint32_t to_passive, uint32_t to_active)
{
	return SHM_RINGS_OFFSET + ((size_t)rwb_pow2(to_passive) + rwb_pow2(to_active)) * sizeof(struct shm_desc);
}

static int make_shared(size_t len)
{
	int fd = memfd_create("rackweave-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return rwf_fail(errno, "connect: memfd_create: %s", strerror(errno));
	if (ftruncate(fd, (off_t)len) || fcntl(fd, F_ADD_SEALS, SEALS)) {
		int e = errno;

		close(fd);
		return rwf_fail(e, "connect: shared memory of %zu bytes: %s", len, strerror(e));
	}
	return fd;
}

void shm_unmap_rings(struct shm_qp *q)
{
	shm_guard_remove(q->shared_guard);
	q->shared_guard = -1;
	if (q->shared)
		munmap(q->shared, q->shared_len);
	q->shared = NULL;
}

static void unlink_peer(struct shm_qp *q)
{
	if (q->pidfd >= 0)
		close(q->pidfd);
	shm_unmap_rings(q);
	q->sock = q->pidfd = -1;
	q->mine = q->peer = NULL;
}

/*
 * Maps the rings behind fd and points the queue pair at its halves. On success the socket belongs to the queue pair. The
 * caller changes the state.
 */
static int link_peer(struct shm_qp *q, int sock, int fd, bool active)
{
	uint32_t out = rwb_pow2(q->peer_ep.recv_depth), in = rwb_pow2(q->self.recv_depth);
	size_t len = active ? shared_len(out, in) : shared_len(in, out);
	struct shm_shared *s;
	struct shm_desc *ring;
	struct stat st;
	int rc;

	if ((fcntl(fd, F_GET_SEALS) & SEALS) != SEALS || fstat(fd, &st) || (uint64_t)st.st_size != len)
		return -EPROTO;
	s = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (s == MAP_FAILED)
		return -errno;
	q->shared = s;
	q->shared_len = len;
	q->guarded = !active || q->by_ref;
	if (q->guarded) {
		rc = shm_guard_start();
		q->shared_guard = rc ? rc : shm_guard_add(s, len, &st, 0, UINT64_MAX);
		if (q->shared_guard < 0) {
			rc = q->shared_guard;
			shm_unmap_rings(q);
			return rc;
		}
	}
	ring = (struct shm_desc *)((char *)s + SHM_RINGS_OFFSET);
	q->mine = &s->side[!active];
	q->peer = &s->side[active];
	q->tx = active ? ring : ring + in;
	q->rx = active ? ring + out : ring;
	q->tx_mask = out - 1;
	q->peer_by_ref = q->peer_ep.by_ref;
	atomic_store(&q->mine->wake_at, SHM_DISARMED);
	q->sock = sock;
	q->pidfd = shm_peer_pidfd(sock);
	rc = shm_cq_watch(q->send_cq, q);
	if (!rc && q->recv_cq != q->send_cq)
		rc = shm_cq_watch(q->recv_cq, q);
	if (rc) {
		shm_cq_unwatch(q->send_cq, q);
		shm_cq_unwatch(q->recv_cq, q);
		unlink_peer(q);
	}
	return rc;
}

/*
 * Takes the last step on both sides, under the device's lock and after the state became RTS: notifies the peer of what the
 * owner posted and the device registered before. The owner may be posting receives at this moment and then publishes the
 * newer count.
 */
static void announce(struct shm_qp *q)
{
	uint64_t none = 0;

	atomic_compare_exchange_strong(&q->mine->recv_posted, &none, atomic_load(&q->rq_posted));
	shm_advertise_all(q);
}

static int await_accept(int sock, uint64_t deadline_ms, int cancel_fd)
{
	for (;;) {
		uint64_t now = rwb_now_ms();
		uint8_t byte;
		int fd, n;

		if (now >= deadline_ms)
			return rwf_fail(ETIMEDOUT, "connect: the peer did not let us in: its process must be calling "
						   "rwf_get_async_event and its queue pair be connecting to this one");
		n = rwb_connect_wait(sock, POLLIN, cancel_fd, (deadline_ms - now) * 1000000);
		if (n < 0)
			return n;
		n = shm_recv(sock, &byte, 1, &fd);
		if (fd >= 0)
			close(fd);
		if (n == 1 && fd < 0 && byte == ACCEPT)
			return 0;
		if (n != -EAGAIN)
			return rwf_fail(ECONNREFUSED, "connect: the peer refused: its queue pair is gone, or connects to another");
	}
}

static int greet(struct shm_qp *q, int sock, int fd, uint64_t deadline_ms, int cancel_fd)
{
	uint8_t hello[SHM_HELLO_LEN];
	int rc;

	if (!shm_peer_allowed(sock, shm_dev(q->base.pd->dev)->any_user))
		return rwf_fail(EPERM, "connect: the peer runs as another user: run both as one, or use provider tcp");
	shm_encode_hello(q->peer_ep.cookie, q->self.cookie, hello);
	rc = shm_send(sock, hello, sizeof hello, fd);
	if (rc)
		return rwf_fail(-rc, "connect: greeting: %s", strerror(-rc));
	return await_accept(sock, deadline_ms, cancel_fd);
}

/*
 * The peer answers first and announces its regions moments later. Waiting for that here spares the first send a wait. A
 * peer with more regions than its socket holds goes on when its owner polls, so the wait is short.
 */
static void settle_regions(struct shm_qp *q)
{
	uint64_t end = rwb_now_ms() + 100;

	while (shm_sync_regions(q) == -EAGAIN && rwb_now_ms() < end)
		sched_yield();
}

static int connect_active(struct shm_qp *q, uint64_t deadline_ms, int cancel_fd)
{
	struct shm_device *d = shm_dev(q->base.pd->dev);
	int fd = make_shared(shared_len(q->peer_ep.recv_depth, q->self.recv_depth)), sock, rc;

	if (fd < 0)
		return fd;
	sock = shm_dial(q->peer_ep.listener, deadline_ms, cancel_fd);
	rc = sock < 0 ? sock : greet(q, sock, fd, deadline_ms, cancel_fd);
	if (!rc) {
		rc = link_peer(q, sock, fd, true);
		if (rc)
			rwf_fail(-rc, "connect: mapping the rings: %s", strerror(-rc));
	}
	close(fd);
	if (rc) {
		if (sock >= 0)
			close(sock);
		return rc;
	}
	pthread_mutex_lock(&d->lock);
	atomic_store(&q->base.state, RWF_QPS_RTS);
	announce(q);
	pthread_mutex_unlock(&d->lock);
	settle_regions(q);
	return 0;
}

int shm_connect_qp(rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr)
{
	struct shm_qp *q = (struct shm_qp *)qp;
	struct shm_device *d = shm_dev(qp->pd->dev);
	struct shm_endpoint ep;
	int rc = shm_decode_endpoint(peer, len, &ep);

	if (rc)
		return rc;
	if (shm_state(q) != RWF_QPS_INIT)
		return rwf_fail(EINVAL, "connect: queue pair 0x%x was connected before", qp->num);
	q->rnr_ms = attr->rnr_timeout_ms;
	q->ack_ms = attr->ack_timeout_ms;
	q->peer_ep = ep;
	q->deadline_ms = rwb_now_ms() + attr->timeout_ms;
	if (attr->active)
		return connect_active(q, q->deadline_ms, attr->cancel_fd);
	atomic_store(&q->base.state, RWF_QPS_RTR);
	rwb_notify(d->event_fd);
	return 0;
}

/* Lets a greeted peer in. Returns 0 or why not. Under the device's lock. */
static int admit(struct shm_qp *q, struct shm_half_open *h)
{
	int rtr = RWF_QPS_RTR, rc;

	if (memcmp(h->from, q->peer_ep.cookie, SHM_COOKIE) != 0)
		return -EPERM;
	rc = link_peer(q, h->sock, h->fd, false);
	if (rc)
		return rc;
	/* The answer goes first: once the state is RTS the owner may send too. */
	rc = shm_send(h->sock, &ACCEPT, 1, -1);
	if (rc || !atomic_compare_exchange_strong(&q->base.state, &rtr, RWF_QPS_RTS)) {
		shm_cq_unwatch(q->send_cq, q);
		shm_cq_unwatch(q->recv_cq, q);
		unlink_peer(q);
		return rc ? rc : -ECANCELED;
	}
	announce(q);
	shm_raise(q, RWF_EVENT_QP_ESTABLISHED);
	/* A sleeper armed itself before this connection was there. */
	shm_wake_cq(&q->send_cq->base);
	shm_wake_cq(&q->recv_cq->base);
	return 0;
}

static void drop(struct shm_device *d, int i)
{
	close(d->half[i].sock);
	if (d->half[i].fd >= 0)
		close(d->half[i].fd);
	d->half[i] = d->half[--d->halves];
}

void shm_drop_half_open(struct shm_device *d)
{
	while (d->halves)
		drop(d, 0);
}

/* Tries to take one step with a half-open connection. Returns false when it is over, with success or without. */
static bool step(struct shm_device *d, struct shm_half_open *h, uint64_t now)
{
	bool keep = true;

	if (h->fd < 0) {
		uint8_t buf[SHM_HELLO_LEN + 1];
		int n = shm_recv(h->sock, buf, sizeof buf, &h->fd);

		if (n == -EAGAIN)
			return now - h->since_ms < SHM_HELLO_MS;
		if (n <= 0 || h->fd < 0 || shm_decode_hello(buf, (size_t)n, h->to, h->from))
			return false;
	} else {
		uint8_t byte;

		/* It has greeted and has nothing to say until it gives up. */
		if (recv(h->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN)
			return false;
	}
	pthread_mutex_lock(&d->lock);
	struct shm_qp *q = d->qps;

	while (q && memcmp(q->self.cookie, h->to, SHM_COOKIE) != 0)
		q = q->next;
	/* In INIT the owner has not said yet whom it waits for. */
	if (!q || (shm_state(q) != RWF_QPS_INIT && shm_state(q) != RWF_QPS_RTR) || now - h->since_ms >= SHM_ACCEPT_MS) {
		keep = false;
	} else if (shm_state(q) == RWF_QPS_RTR) {
		keep = false;
		if (admit(q, h) == 0)
			h->sock = -1;
	}
	pthread_mutex_unlock(&d->lock);
	return keep;
}

static void step_all(struct shm_device *d)
{
	uint64_t now = rwb_now_ms();

	for (int i = 0; i < d->halves; i++)
		if (!step(d, &d->half[i], now))
			drop(d, i--);
}

/*
 * Takes in new connections. When too many are half open, it drops those that should have greeted long since. The other
 * newcomers wait in the listener's queue and try again when that is full.
 */
static void let_in(struct shm_device *d)
{
	uint64_t now = rwb_now_ms();

	if (d->halves == SHM_MAX_HALF_OPEN)
		for (int i = 0; i < d->halves; i++)
			if (d->half[i].fd < 0 && now - d->half[i].since_ms >= SHM_HELLO_FULL_MS)
				drop(d, i--);
	while (d->halves < SHM_MAX_HALF_OPEN && now >= d->accept_paused_ms) {
		int s = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (s < 0) {
			/* The newcomer stays in the queue, where it would end every wait at once. */
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
				d->accept_paused_ms = now + PAUSE_MS;
			return;
		}
		if (shm_peer_allowed(s, d->any_user))
			d->half[d->halves++] = (struct shm_half_open){.sock = s, .fd = -1, .since_ms = now};
		else
			close(s);
	}
}

static bool take_bit(_Atomic uint32_t *events, uint32_t *type)
{
	uint32_t bits = atomic_load(events);

	if (!bits)
		return false;
	*type = (uint32_t)__builtin_ctz(bits);
	atomic_fetch_and(events, ~(1u << *type));
	return true;
}

/*
 * Gives up passive queue pairs whose time has passed, then looks for an event; a queue pair has a bit for each. Sets
 * *waiting when some queue pair's time still runs.
 */
static bool next_event(struct shm_device *d, struct rwf_async_event *out, bool *waiting)
{
	uint64_t now = rwb_now_ms();
	bool found = false;

	pthread_mutex_lock(&d->lock);
	for (struct shm_qp *q = d->qps; q && !found; q = q->next) {
		int rtr = RWF_QPS_RTR;

		if (shm_state(q) == RWF_QPS_RTR && now >= q->deadline_ms &&
		    atomic_compare_exchange_strong(&q->base.state, &rtr, RWF_QPS_ERR)) {
			shm_raise(q, RWF_EVENT_QP_FATAL);
			shm_wake_cq(&q->send_cq->base);
			shm_wake_cq(&q->recv_cq->base);
		}
		*waiting |= shm_state(q) == RWF_QPS_RTR;
		found = take_bit(&q->events, &out->type);
		out->qp_num = q->base.num;
	}
	for (struct shm_cq *cq = d->cqs; cq && !found; cq = cq->next) {
		found = take_bit(&cq->events, &out->type);
		out->qp_num = 0;
	}
	pthread_mutex_unlock(&d->lock);
	return found;
}

/* Sleeps for at most ms, until something happens at the listener, a half-open connection or a queue pair. */
static void wait_for_any(struct shm_device *d, int ms)
{
	bool closed = d->halves == SHM_MAX_HALF_OPEN || rwb_now_ms() < d->accept_paused_ms;
	struct pollfd p[2 + SHM_MAX_HALF_OPEN] = {{closed ? -1 : d->listener, POLLIN, 0}, {d->event_fd, POLLIN, 0}};

	/* A greeted connection waits for its queue pair, which announces itself by event_fd. */
	for (int i = 0; i < d->halves; i++)
		p[2 + i] = (struct pollfd){d->half[i].fd < 0 ? d->half[i].sock : -1, POLLIN, 0};
	poll(p, 2 + (nfds_t)d->halves, ms);
	rwb_clear(d->event_fd);
}

int shm_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out)
{
	enum { SLICE_MS = 20 }; /* how often ages are checked while something can grow too old */
	struct shm_device *d = shm_dev(dev);
	uint64_t end = rwb_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
	struct timespec t;
	int found;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += timeout_ms > 0 ? timeout_ms / 1000 + 1 : 0;
	if (pthread_mutex_clocklock(&d->accept_lock, CLOCK_MONOTONIC, &t))
		return 0;
	for (;;) {
		bool waiting = false;
		uint64_t now;

		let_in(d);
		step_all(d);
		found = next_event(d, out, &waiting);
		now = rwb_now_ms();
		if (found || now >= end)
			break;
		waiting |= d->halves > 0 || now < d->accept_paused_ms;
		wait_for_any(d, waiting && end - now > SLICE_MS ? SLICE_MS : (int)(end - now));
	}
	pthread_mutex_unlock(&d->accept_lock);
	return found;
}
