/* The active side of a connection: reach the peer's listener, say whom we want, and wait to be let in. */
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

	if (dev->source.family == peer->family) {
		len = tcp_endpoint_sockaddr(&dev->source, &sa);
		if (bind(a->fd, (struct sockaddr *)&sa, len))
			return rwf_fail(errno, "connect to %s from %s: %s", a->where, dev->name, strerror(errno));
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

static int read_reply(struct attempt *a, uint8_t reply[TCP_HELLO_LEN])
{
	for (size_t have = 0; have < TCP_HELLO_LEN;) {
		int rc = wait_for(a, POLLIN, "to be let in: does the peer poll for asynchronous events?");
		ssize_t n;

		if (rc)
			return rc;
		n = read(a->fd, reply + have, TCP_HELLO_LEN - have);
		if (n > 0)
			have += (size_t)n;
		else if (n == 0)
			return rwf_fail(ECONNREFUSED, "connect to %s: the peer has no queue pair waiting for this one", a->where);
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
		.from_qp = qp->head.num,
		.window = qp->dev->window,
		.posted = atomic_load(&qp->in.posted),
	};
	uint8_t bytes[TCP_HELLO_LEN];
	int rc;

	qp->in.told_posted = hello.posted;
	tcp_hello_encode(&hello, peer->cookie, bytes);
	if (send(a->fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
		return rwf_fail(errno, "connect to %s: %s", a->where, strerror(errno));
	rc = read_reply(a, bytes);
	if (rc)
		return rc;
	if (tcp_hello_decode(&hello, bytes) || hello.kind != TCP_HELLO_ACCEPT || hello.to_qp != qp->head.num ||
	    hello.from_qp != peer->qp_num || !tcp_hello_proven(bytes, qp->cookie))
		return rwf_fail(EPROTO, "connect to %s: what answered there is not the peer", a->where);
	qp->out.window = hello.window;
	qp->out.peer_posted = hello.posted;
	return 0;
}

/* Finds where the peer is: what its endpoint says, or, where it listens on every address, what the device's option says. */
static int locate(const struct tcp_device *dev, struct tcp_endpoint *peer)
{
	if (!tcp_is_wildcard(peer))
		return 0;
	if (!dev->peer.family)
		return rwf_fail(EDESTADDRREQ,
				"connect to port %u: the peer listens on every address: say with option peer=ADDR where it is",
				peer->port);
	peer->family = dev->peer.family;
	memcpy(peer->addr, dev->peer.addr, sizeof peer->addr);
	return 0;
}

/* Connects. Leaves the socket in arrived_fd, and in peer the address it leads to. */
int tcp_connect(struct tcp_qp *qp, struct tcp_endpoint *peer, const struct rwf_connect_attr *attr)
{
	struct attempt a = {.cancel_fd = attr->cancel_fd, .deadline_ns = rwb_now_ns() + attr->timeout_ms * 1000000ull};
	char text[INET6_ADDRSTRLEN];
	int rc = locate(qp->dev, peer);

	if (rc)
		return rc;
	inet_ntop(peer->family, peer->addr, text, sizeof text);
	snprintf(a.where, sizeof a.where, "%s port %u", text, peer->port);
	a.fd = tcp_socket(qp->dev, peer->family);
	if (a.fd < 0)
		return a.fd;
	rc = open_connection(qp->dev, &a, peer);
	if (!rc)
		rc = tcp_no_delay(a.fd);
	if (!rc)
		rc = introduce(qp, &a, peer);
	if (rc) {
		close(a.fd);
		return rc;
	}
	atomic_store(&qp->join.arrived_fd, a.fd);
	return 0;
}
