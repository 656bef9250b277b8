/*
 * A bare socket loop: what a machine's sockets move when nobody asks what the bytes are. Each thread serves its connections
 * in turn with nonblocking send and recv of whole blocks where epoll said they would go, and sleeps there when none would.
 */
#include "tcp.h"

#include "roofline.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 1024 };

/* One direction of one end of a connection. */
struct flow {
	char *memory;
	uint64_t left, done; /* bytes; done also says where in the span the next block lies */
	bool ready;          /* the socket took or gave all that was asked of it last time */
};

struct end {
	int fd;
	struct flow out, in;
};

struct crew {
	pthread_t thread;
	bool started;
	const struct rwf_tcp_roofline *r;
	struct end *ends; /* every step-th of them, from first */
	uint32_t first, step;
	uint64_t deadline_ns;
	int error;
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How much of the next block to move: the span is walked round and round. */
static size_t next_block(const struct flow *f, const struct rwf_tcp_roofline *r)
{
	return least(least(r->block, f->left), r->span - f->done % r->span);
}

/* Books what a send or recv of asked bytes did; 0, or a negative errno. */
static int book(struct flow *f, ssize_t did, size_t asked)
{
	if (did < 0 && errno != EAGAIN && errno != EINTR)
		return -errno;
	f->ready = did == (ssize_t)asked;
	if (did > 0) {
		f->left -= (uint64_t)did;
		f->done += (uint64_t)did;
	}
	return 0;
}

/* Sends and receives a block each, where the socket is ready for it. */
static int move(struct end *e, const struct rwf_tcp_roofline *r)
{
	int rc = 0;

	if (e->out.left && e->out.ready) {
		size_t n = next_block(&e->out, r);

		rc = book(&e->out, send(e->fd, e->out.memory + e->out.done % r->span, n, MSG_NOSIGNAL | MSG_DONTWAIT), n);
	}
	if (!rc && e->in.left && e->in.ready) {
		size_t n = next_block(&e->in, r);
		ssize_t got = recv(e->fd, e->in.memory + e->in.done % r->span, n, MSG_DONTWAIT);

		rc = got == 0 ? -ECONNRESET : book(&e->in, got, n);
	}
	return rc;
}

static void take_events(int epoll_fd, int timeout_ms)
{
	struct epoll_event events[64];
	int n = epoll_wait(epoll_fd, events, 64, timeout_ms);

	for (int i = 0; i < n; i++) {
		struct end *e = events[i].data.ptr;

		e->in.ready |= (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
		e->out.ready |= (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
	}
}

static int serve(struct crew *c, int epoll_fd)
{
	for (;;) {
		bool ready = false, left = false;

		for (uint32_t i = c->first; i < c->r->connections; i += c->step) {
			struct end *e = &c->ends[i];
			int rc = move(e, c->r);

			if (rc < 0)
				return rc;
			ready |= (e->out.left && e->out.ready) || (e->in.left && e->in.ready);
			left |= e->out.left || e->in.left;
		}
		if (!left)
			return 0;
		if (rwb_now_ns() > c->deadline_ns)
			return -ETIMEDOUT;
		take_events(epoll_fd, ready ? 0 : 100);
	}
}

static void *work(void *arg)
{
	struct crew *c = arg;
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC);

	for (uint32_t i = c->first; i < c->r->connections && !c->error; i += c->step) {
		struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = &c->ends[i]};

		if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->ends[i].fd, &ev))
			c->error = -errno;
	}
	if (!c->error)
		c->error = serve(c, epoll_fd);
	if (epoll_fd >= 0)
		close(epoll_fd);
	return NULL;
}

static int tune(int fd, uint32_t sockbuf)
{
	int on = 1, size = (int)sockbuf;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
		return -1;
	return sockbuf && (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) ||
			   setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
}

/* Connects fds[0] and fds[1] over loopback. */
static int join(int listener, const struct sockaddr_in *at, uint32_t sockbuf, int fds[2])
{
	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fds[0] < 0 || tune(fds[0], sockbuf) || connect(fds[0], (const struct sockaddr *)at, sizeof *at))
		return -errno;
	fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return fds[1] < 0 || tune(fds[1], sockbuf) ? -errno : 0;
}

static int join_all(const struct rwf_tcp_roofline *r, struct end *near, struct end *far)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof at;
	int rc = 0, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0 || tune(listener, r->sockbuf) || bind(listener, (struct sockaddr *)&at, sizeof at) ||
	    listen(listener, 16) || getsockname(listener, (struct sockaddr *)&at, &len))
		rc = -errno;
	for (uint32_t i = 0; i < r->connections && !rc; i++) {
		int fds[2] = {-1, -1};

		rc = join(listener, &at, r->sockbuf, fds);
		near[i].fd = fds[0];
		far[i].fd = fds[1];
	}
	if (listener >= 0)
		close(listener);
	return rc;
}

static int prepare(const struct rwf_tcp_roofline *r, struct end *ends)
{
	for (uint32_t i = 0; i < r->connections; i++) {
		struct end *e = &ends[i];

		e->out.left = e->in.left = r->bytes / r->connections;
		e->out.memory = malloc(r->span);
		e->in.memory = malloc(r->span);
		if (!e->out.memory || !e->in.memory)
			return -ENOMEM;
		/* Touched before the clock starts. */
		memset(e->out.memory, 1, r->span);
		memset(e->in.memory, 1, r->span);
	}
	return 0;
}

static void release(const struct rwf_tcp_roofline *r, struct end *ends)
{
	for (uint32_t i = 0; ends && i < r->connections; i++) {
		if (ends[i].fd >= 0)
			close(ends[i].fd);
		free(ends[i].out.memory);
		free(ends[i].in.memory);
	}
	free(ends);
}

static int64_t run(const struct rwf_tcp_roofline *r, struct crew *crews, struct end *near, struct end *far)
{
	uint64_t start = rwb_now_ns(), deadline = start + r->timeout_ms * 1000000ull;
	int rc = 0;

	for (uint32_t i = 0; i < r->hubs + r->peers; i++) {
		bool hub = i < r->hubs;
		struct crew *c = &crews[i];

		*c = (struct crew){.r = r,
				   .ends = hub ? near : far,
				   .first = hub ? i : i - r->hubs,
				   .step = hub ? r->hubs : r->peers,
				   .deadline_ns = deadline};
		c->started = pthread_create(&c->thread, NULL, work, c) == 0;
		if (!c->started)
			rc = -EAGAIN;
	}
	/* What a thread that could not start would have moved is missed by its peers, who end at the deadline. */
	for (uint32_t i = 0; i < r->hubs + r->peers; i++) {
		if (!crews[i].started)
			continue;
		pthread_join(crews[i].thread, NULL);
		rc = rc ? rc : crews[i].error;
	}
	return rc ? rc : (int64_t)(rwb_now_ns() - start);
}

int64_t rwf_tcp_roofline(const struct rwf_tcp_roofline *r)
{
	struct end *near, *far;
	struct crew *crews;
	int64_t rc;

	if (r->connections == 0 || r->connections > MAX_CONNECTIONS || r->hubs == 0 || r->hubs > r->connections || r->peers == 0 ||
	    r->peers > r->connections || r->block == 0 || r->span < r->block || r->bytes < r->connections)
		return rwf_fail(EINVAL, "tcp roofline: %u connections, %u hubs, %u peers, blocks of %u, span %llu, %llu bytes",
				r->connections, r->hubs, r->peers, r->block, (unsigned long long)r->span,
				(unsigned long long)r->bytes);
	near = calloc(r->connections, sizeof *near);
	far = calloc(r->connections, sizeof *far);
	crews = calloc(r->hubs + r->peers, sizeof *crews);
	for (uint32_t i = 0; near && far && i < r->connections; i++)
		near[i].fd = far[i].fd = -1;
	rc = near && far && crews ? join_all(r, near, far) : -ENOMEM;
	if (!rc && !(rc = prepare(r, near)))
		rc = prepare(r, far);
	if (!rc)
		rc = run(r, crews, near, far);
	release(r, near);
	release(r, far);
	free(crews);
	return rc < 0 ? rwf_fail((int)-rc, "tcp roofline: %s", strerror((int)-rc)) : rc;
}
