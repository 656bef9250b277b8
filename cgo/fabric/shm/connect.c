/*
 * Provider shm: connections. The active side makes the shared memory, dials the passive device's listener and greets with both
 * queue pairs' cookies. The passive side lets it in by rwf_get_async_event, on any thread that calls that.
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
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
static const uint8_t ACCEPT = 'A';

/* Both sides compute equal sizes. The ring toward the passive side comes first. */
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

		shm_close_own(fd);
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
	shm_cq_unwatch(q);
	shm_close_own(q->pidfd);
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
	int seals = fcntl(fd, F_GET_SEALS), rc;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) || (uint64_t)st.st_size != len)
		return -EPROTO;
	s = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (s == MAP_FAILED)
		return -errno;
	q->shared = s;
	q->shared_len = len;
	q->guarded = !active || q->by_ref;
	if (q->guarded) {
		rc = shm_guard_start();
		q->shared_guard = rc ? rc : shm_guard_add(s, len);
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
	rc = shm_cq_watch(q);
	if (rc)
		unlink_peer(q);
	return rc;
}

/*
 * Takes the last step on both sides, under the device's lock and after the state became RTS. Notifies the peer of the owner's posts
 * and the device's registrations before. The owner may be posting receives at this moment and then publishes the newer count.
 */
static void announce(struct shm_qp *q)
{
	uint64_t none = 0;

	atomic_compare_exchange_strong(&q->mine->recv_posted, &none, atomic_load(&q->base.recv_posted));
	shm_advertise_all(q);
}

int shm_decode_endpoint(const void *buf, size_t len, struct shm_endpoint *out)
{
	if (len != sizeof *out || memcmp(buf, "RWSE", 4) != 0)
		return rwf_fail(EINVAL, "connect: %zu bytes that are not an endpoint of provider shm", len);
	memcpy(out, buf, sizeof *out);
	if (out->version != SHM_VERSION)
		return rwf_fail(EINVAL, "connect: the peer's shm endpoint has version %u, this is %d: run the same release on both",
				out->version, SHM_VERSION);
	if (out->by_ref > 1 || out->recv_depth == 0 || out->recv_depth > SHM_MAX_QP_WR)
		return rwf_fail(EINVAL, "connect: the peer's shm endpoint is out of range: flags 0x%x, %u receives", out->by_ref,
				out->recv_depth);
	return 0;
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
		shm_close_received(fd);
		if (n == 1 && fd < 0 && byte == ACCEPT)
			return 0;
		if (n != -EAGAIN)
			return rwf_fail(ECONNREFUSED, "connect: the peer refused: its queue pair is gone, or connects to another");
	}
}

static int call(struct shm_qp *q, int sock, int fd, uint64_t deadline_ms, int cancel_fd)
{
	struct shm_hello hello = {.magic = SHM_HELLO_MAGIC, .version = SHM_VERSION};
	int rc;

	if (!shm_peer_allowed(sock, shm_dev(q->base.head.pd->dev)->any_user))
		return rwf_fail(EPERM, "connect: the peer runs as another user: run both as one, or use provider tcp");
	memcpy(hello.to, q->peer_ep.cookie, SHM_COOKIE);
	memcpy(hello.from, q->self.cookie, SHM_COOKIE);
	rc = shm_send(sock, &hello, sizeof hello, fd);
	if (rc)
		return rwf_fail(-rc, "connect: greeting: %s", strerror(-rc));
	return await_accept(sock, deadline_ms, cancel_fd);
}

/*
 * The peer answers first and announces its regions moments later. Waiting for that here spares the first send a wait. A peer with
 * more regions than its socket holds continues when its owner polls, so the wait is short.
 */
static void settle_regions(struct shm_qp *q)
{
	uint64_t end = rwb_now_ms() + 100;

	while (shm_sync_regions(q) == -EAGAIN && rwb_now_ms() < end)
		sched_yield();
}

static int connect_active(struct shm_qp *q, uint64_t deadline_ms, int cancel_fd)
{
	struct shm_device *d = shm_dev(q->base.head.pd->dev);
	int fd = make_shared(shared_len(q->peer_ep.recv_depth, q->self.recv_depth)), sock, rc;

	if (fd < 0)
		return fd;
	sock = shm_dial(q->peer_ep.listener, deadline_ms, cancel_fd);
	rc = sock < 0 ? sock : call(q, sock, fd, deadline_ms, cancel_fd);
	if (!rc) {
		rc = link_peer(q, sock, fd, true);
		if (rc)
			rwf_fail(-rc, "connect: mapping the rings: %s", strerror(-rc));
	}
	shm_close_own(fd);
	if (rc) {
		if (sock >= 0)
			shm_hang_up(sock);
		return rc;
	}
	pthread_mutex_lock(&d->door.device.lock);
	atomic_store(&q->base.head.state, RWF_QPS_RTS);
	announce(q);
	pthread_mutex_unlock(&d->door.device.lock);
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
	q->rnr_ms = attr->rnr_timeout_ms;
	q->ack_ms = attr->ack_timeout_ms;
	q->peer_ep = ep;
	q->base.deadline_ns = rwb_now_ns() + attr->timeout_ms * 1000000ull;
	if (attr->active)
		return connect_active(q, rwb_now_ms() + attr->timeout_ms, attr->cancel_fd);
	atomic_store(&q->base.head.state, RWF_QPS_RTR);
	rwb_notify(d->door.device.event_fd);
	return 0;
}

static bool welcome(struct rwb_door *door, struct rwb_half *half, uint64_t now)
{
	(void)now;
	return shm_peer_allowed(half->fd, ((struct shm_device *)door)->any_user);
}

static int greet(struct rwb_half *half)
{
	const struct shm_hello *hello = (const struct shm_hello *)half->hello;
	int n = shm_recv(half->fd, half->hello, sizeof *hello, &half->file);

	if (n == -EAGAIN)
		return 0;
	return n == sizeof *hello && half->file >= 0 && hello->magic == SHM_HELLO_MAGIC && hello->version == SHM_VERSION &&
			       hello->zero == 0
		       ? 1
		       : -1;
}

static bool calls(const struct rwb_half *half, struct rwb_qp *q)
{
	return memcmp(((struct shm_qp *)q)->self.cookie, ((const struct shm_hello *)half->hello)->to, SHM_COOKIE) == 0;
}

static bool admit(struct rwb_qp *base, struct rwb_half *half)
{
	struct shm_qp *q = (struct shm_qp *)base;
	int rtr = RWF_QPS_RTR;

	if (memcmp(((const struct shm_hello *)half->hello)->from, q->peer_ep.cookie, SHM_COOKIE) != 0 ||
	    link_peer(q, half->fd, half->file, false))
		return false;
	/* The answer goes first, because the owner may send too when the state is RTS. */
	if (shm_send(half->fd, &ACCEPT, 1, -1) || !atomic_compare_exchange_strong(&base->head.state, &rtr, RWF_QPS_RTS)) {
		unlink_peer(q);
		return false;
	}
	announce(q);
	rwb_raise(base, RWF_EVENT_QP_ESTABLISHED);
	rwf_wake_cq(base->head.cq); /* a sleeper armed itself before this connection existed */
	shm_close_received(half->file);
	return true;
}

static void hang_up(struct rwb_half *half)
{
	shm_hang_up(half->fd);
	shm_close_received(half->file);
}

/* Newcomers bring files, so they wait while too many files wait to be closed. */
static uint64_t update(struct rwb_door *door, uint64_t now, uint64_t until)
{
	if (shm_closing_full())
		door->paused_ns = now + RWB_PAUSE_MS * 1000000ull;
	return until;
}

const struct rwb_door_ops shm_door_ops = {welcome, greet, calls, admit, hang_up, update};

void shm_shut_door(struct shm_device *d)
{
	int s;

	rwb_door_empty(&d->door);
	shutdown(d->door.listen_fd, SHUT_RDWR);
	while ((s = accept4(d->door.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		shm_hang_up(s);
	shm_close_own(d->door.listen_fd);
}
