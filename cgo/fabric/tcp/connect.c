/* The active side of a connection: it connects to the peer's listener, sends a hello, and waits for the answer. */
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct attempt {
	int fd, cancel_fd;
	uint64_t deadline_ns;
	char where[INET6_ADDRSTRLEN + 16];
};

static int wait_for(struct attempt *a, short events, const char *what)
{
	uint64_t now;

	while ((now = rwb_now_ns()) < a->deadline_ns) {
		int n = rwb_connect_wait(a->fd, events, a->cancel_fd, a->deadline_ns - now);

		if (n)
			return n < 0 ? n : 0;
	}
	return rwf_fail(ETIMEDOUT, "connect to %s: time ran out waiting %s", a->where, what);
}

static int open_connection(struct tcp_device *dev, struct attempt *a, const struct tcp_endpoint *peer)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int err = 0, rc;

	if (dev->source.ip == peer->ip) {
		len = tcp_endpoint_sockaddr(&dev->source, &sa);
		if (bind(a->fd, (struct sockaddr *)&sa, len))
			return rwf_fail(errno, "connect to %s from %s: %s", a->where, dev->door.device.head.attr.name,
					strerror(errno));
	}
	len = tcp_endpoint_sockaddr(peer, &sa);
	if (connect(a->fd, (struct sockaddr *)&sa, len) == 0)
		return 0;
	if (errno != EINPROGRESS && errno != EINTR)
		return rwf_fail(errno, "connect to %s: %s", a->where, strerror(errno));
	rc = wait_for(a, POLLOUT, "for the host to answer");
	if (rc)
		return rc;
	len = sizeof err;
	getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &err, &len);
	return err ? rwf_fail(err, "connect to %s: %s", a->where, strerror(err)) : 0;
}

static int not_awaited(const struct attempt *a)
{
	return rwf_fail(ECONNREFUSED, "connect to %s: the peer has no queue pair waiting for this one", a->where);
}

static int read_reply(struct attempt *a, struct tcp_hello *reply)
{
	for (size_t have = 0; have < sizeof *reply;) {
		int rc = wait_for(a, POLLIN, "for the answer to the hello: does the peer poll for asynchronous events?");
		ssize_t n;

		if (rc)
			return rc;
		n = read(a->fd, (char *)reply + have, sizeof *reply - have);
		if (n > 0)
			have += (size_t)n;
		else if (n == 0 || errno == ECONNRESET)
			return not_awaited(a);
		else if (errno != EAGAIN && errno != EINTR)
			return rwf_fail(errno, "connect to %s: %s", a->where, strerror(errno));
	}
	return 0;
}

static int introduce(struct tcp_qp *qp, struct attempt *a, const struct tcp_endpoint *peer)
{
	struct tcp_hello hello = {
		.kind = TCP_HELLO_REQUEST,
		.to_qp = peer->qp_num,
		.from_qp = qp->base.head.num,
		.window = qp->dev->window,
		.posted = atomic_load(&qp->base.recv_posted),
	};
	int rc;

	qp->in.announced_posted = hello.posted;
	tcp_hello_seal(&hello, peer->cookie);
	if (send(a->fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
		return errno == EPIPE || errno == ECONNRESET ? not_awaited(a)
							     : rwf_fail(errno, "connect to %s: %s", a->where, strerror(errno));
	rc = read_reply(a, &hello);
	if (rc)
		return rc;
	if (!tcp_hello_valid(&hello) || hello.kind != TCP_HELLO_ACCEPT || hello.to_qp != qp->base.head.num ||
	    hello.from_qp != peer->qp_num || !tcp_hello_proven(&hello, qp->cookie))
		return rwf_fail(EPROTO, "connect to %s: what answered there is not the peer", a->where);
	qp->out.window = hello.window;
	qp->out.peer_posted = hello.posted;
	return 0;
}

static int try(struct tcp_qp *qp, struct attempt *a, const struct tcp_endpoint *peer)
{
	int rc;

	a->fd = tcp_socket(qp->dev, tcp_family(peer));
	if (a->fd < 0)
		return a->fd;
	rc = open_connection(qp->dev, a, peer);
	if (!rc)
		rc = introduce(qp, a, peer);
	if (rc)
		close(a->fd);
	return rc;
}

/*
 * Connects to the peer. Stores the socket in arrived_fd. If refused, it tries once more, because strangers may have taken its
 * place before its hello was read.
 */
int tcp_connect(struct tcp_qp *qp, const struct rwf_connect_attr *attr)
{
	struct attempt a = {.cancel_fd = attr->cancel_fd, .deadline_ns = rwb_now_ns() + attr->timeout_ms * 1000000ull};
	const struct tcp_endpoint *peer = &qp->peer;
	char text[INET6_ADDRSTRLEN];
	int rc;

	if (tcp_is_wildcard(peer))
		return rwf_fail(EDESTADDRREQ,
				"connect to port %u: the peer listens on every address: give its own with option advertise",
				peer->port);
	inet_ntop(tcp_family(peer), peer->addr, text, sizeof text);
	snprintf(a.where, sizeof a.where, "%s port %u", text, peer->port);
	rc = try(qp, &a, peer);
	if (rc == -ECONNREFUSED)
		rc = try(qp, &a, peer);
	if (rc)
		return rc;
	atomic_store(&qp->arrived_fd, a.fd);
	return 0;
}
