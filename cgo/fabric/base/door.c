#define _GNU_SOURCE /* accept4, POLLRDHUP, pthread_mutex_clocklock */
#include "door.h"

#include "wait.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

enum {
	HELLO_MS = 2000,   /* for a stranger to send its hello */
	LEAST_MS = 100,    /* of that even if others wait for its place */
	PARKED_MS = 30000, /* for a queue pair to begin to wait for a peer that called it */
	UNAWAITED_MS = 5,  /* between connections while no queue pair waits, on average */
};

int rwb_door_make(struct rwb_door *door, const struct rwf_ops *ops, const struct rwf_device_attr *attr,
		  const struct rwb_door_ops *own)
{
	door->ops = own;
	door->listen_fd = -1;
	for (int i = 0; i < RWB_MAX_HALF_OPEN; i++)
		door->half[i].fd = -1;
	pthread_mutex_init(&door->accept_lock, NULL);
	return rwb_device_make(&door->device, ops, attr);
}

static void drop(struct rwb_door *door, struct rwb_half *half)
{
	door->ops->hang_up(half);
	half->fd = -1;
}

void rwb_door_empty(struct rwb_door *door)
{
	for (int i = 0; i < RWB_MAX_HALF_OPEN; i++)
		if (door->half[i].fd >= 0)
			drop(door, &door->half[i]);
}

void rwb_door_free(struct rwb_door *door)
{
	pthread_mutex_destroy(&door->accept_lock);
	rwb_device_free(&door->device);
}

/*
 * Finds a place for a new connection: a free one, or that of the oldest stranger, or that of the oldest parked peer. Returns NULL
 * if that stranger has had less than LEAST_MS. New connections then stay in the kernel until it has had them.
 */
static struct rwb_half *place(struct rwb_door *door, uint64_t now)
{
	const uint64_t rest = (HELLO_MS - LEAST_MS) * 1000000ull;
	struct rwb_half *worst = NULL;

	for (int i = 0; i < RWB_MAX_HALF_OPEN; i++) {
		struct rwb_half *half = &door->half[i];

		if (half->fd < 0)
			return half;
		if (!worst || half->greeted < worst->greeted ||
		    (half->greeted == worst->greeted && half->deadline_ns < worst->deadline_ns))
			worst = half;
	}
	if (worst->greeted || worst->deadline_ns <= now + rest)
		return worst;
	door->paused_ns = worst->deadline_ns - rest;
	return NULL;
}

static void accept_new(struct rwb_door *door, uint64_t now)
{
	door->unawaited_paused_ns = now;
	for (int i = 0; i < RWB_MAX_HALF_OPEN; i++) {
		struct rwb_half new = {.file = -1, .deadline_ns = now + HELLO_MS * 1000000ull}, *half = place(door, now);
		socklen_t len = sizeof new.from;

		if (!half)
			return;
		new.fd = accept4(door->listen_fd, (struct sockaddr *)&new.from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (new.fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
				door->paused_ns = now + RWB_PAUSE_MS * 1000000ull;
			return;
		}
		door->unawaited_paused_ns += UNAWAITED_MS * 1000000ull;
		if (!door->ops->welcome(door, &new, now)) {
			door->ops->hang_up(&new);
			continue;
		}
		if (half->fd >= 0)
			drop(door, half);
		*half = new;
	}
}

/* Gives a greeted connection to the queue pair that it calls, if that waits. Returns false if no queue pair will take it. */
static bool introduce(struct rwb_door *door, struct rwb_half *half)
{
	struct rwb_qp *qp;
	bool keep = false;

	pthread_mutex_lock(&door->device.lock);
	LIST_FOREACH(qp, &door->device.qps, of_device)
		if (door->ops->calls(half, qp))
			break;
	if (qp && qp->head.state == RWF_QPS_RTR) {
		keep = door->ops->admit(qp, half);
		if (keep)
			half->fd = -1;
	} else if (qp && qp->head.state == RWF_QPS_INIT) {
		keep = true;
	}
	pthread_mutex_unlock(&door->device.lock);
	return keep;
}

/* Reads a stranger's hello. A parked peer sends nothing more. It can only close the connection. */
static void serve_half(struct rwb_door *door, struct rwb_half *half, uint64_t now, bool readable)
{
	int greeted = half->greeted && !readable;

	if (readable && !half->greeted) {
		greeted = door->ops->greet(half);
		if (greeted > 0) {
			half->greeted = true;
			half->deadline_ns = now + PARKED_MS * 1000000ull;
		}
	} else if (readable) {
		greeted = -1;
	}
	if (greeted < 0 || (greeted && !introduce(door, half)) || (half->fd >= 0 && now >= half->deadline_ns))
		drop(door, half);
}

/* Fails queue pairs whose peer did not arrive in time. Returns the next deadline, at most until. Sets *waiting if some wait. */
static uint64_t expire_passive(struct rwb_door *door, uint64_t now, uint64_t until, bool *waiting)
{
	struct rwb_qp *qp;

	pthread_mutex_lock(&door->device.lock);
	LIST_FOREACH(qp, &door->device.qps, of_device) {
		int rtr = RWF_QPS_RTR;

		if (qp->head.state != RWF_QPS_RTR)
			continue;
		if (now < qp->deadline_ns) {
			*waiting = true;
			until = qp->deadline_ns < until ? qp->deadline_ns : until;
		} else if (atomic_compare_exchange_strong(&qp->head.state, &rtr, RWF_QPS_ERR)) {
			rwb_raise(qp, RWF_EVENT_QP_FATAL);
			rwb_notify(qp->head.cq->wake_fd); /* the owner flushes it */
		}
	}
	pthread_mutex_unlock(&door->device.lock);
	return until;
}

/* Waits, at most until, for something to do, and does it. */
static void serve(struct rwb_door *door, uint64_t now, uint64_t until)
{
	struct pollfd fds[2 + RWB_MAX_HALF_OPEN] = {{.fd = door->device.event_fd, .events = POLLIN},
						    {.fd = door->listen_fd, .events = POLLIN}};
	struct rwb_half *polled[RWB_MAX_HALF_OPEN];
	nfds_t n = 2; /* only places in use: more than the limit on open files is EINVAL */
	bool waiting = false;
	uint64_t paused;

	until = door->ops->update(door, now, expire_passive(door, now, until, &waiting));
	paused = !waiting && door->unawaited_paused_ns > door->paused_ns ? door->unawaited_paused_ns : door->paused_ns;
	if (now < paused) {
		fds[1].fd = -1;
		until = paused < until ? paused : until;
	}
	for (int i = 0; i < RWB_MAX_HALF_OPEN; i++) {
		struct rwb_half *half = &door->half[i];

		if (half->fd < 0)
			continue;
		polled[n - 2] = half;
		fds[n++] = (struct pollfd){.fd = half->fd, .events = half->greeted ? POLLRDHUP : POLLIN};
		until = half->deadline_ns < until ? half->deadline_ns : until;
	}
	if (rwb_poll(fds, n, until > now ? until - now : 0) < 0)
		return;
	now = rwb_now_ns();
	if (fds[0].revents)
		rwb_clear(door->device.event_fd);
	for (nfds_t i = 2; i < n; i++)
		serve_half(door, polled[i - 2], now, fds[i].revents != 0);
	if (fds[1].revents)
		accept_new(door, now);
}

int rwb_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out)
{
	struct rwb_door *door = (struct rwb_door *)dev;
	uint64_t now = rwb_now_ns(), until = now + (timeout_ms > 0 ? (uint64_t)timeout_ms * 1000000 : 0);
	struct timespec ts = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
	bool found;

	/* A second caller waits, because there is one listener. */
	if (pthread_mutex_clocklock(&door->accept_lock, CLOCK_MONOTONIC, &ts))
		return 0;
	for (;; now = rwb_now_ns()) {
		found = rwb_take_event(&door->device, out);
		if (found)
			break;
		serve(door, now, until);
		if (now >= until) {
			found = rwb_take_event(&door->device, out);
			break;
		}
	}
	pthread_mutex_unlock(&door->accept_lock);
	return found;
}
