/* Provider shm: the Unix sockets. Packets, not a stream: a message is whole, whichever thread sends it. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

int shm_random(void *buf, size_t len)
{
	if (getrandom(buf, len, 0) != (ssize_t)len)
		return rwf_fail(errno ? errno : EIO, "shm: no random bytes: %s", strerror(errno));
	return 0;
}

static socklen_t address(const uint8_t *name, struct sockaddr_un *sa)
{
	char hex[2 * SHM_COOKIE + 1];
	int n;

	for (int i = 0; i < SHM_COOKIE; i++)
		snprintf(hex + 2 * i, 3, "%02x", name[i]);
	memset(sa, 0, sizeof *sa);
	sa->sun_family = AF_UNIX;
	n = snprintf(sa->sun_path + 1, sizeof sa->sun_path - 1, "rackweave-shm-%s", hex);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int shm_listen(const uint8_t *name)
{
	struct sockaddr_un sa;
	socklen_t len = address(name, &sa);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (s < 0)
		return rwf_fail(errno, "shm: socket: %s", strerror(errno));
	if (bind(s, (struct sockaddr *)&sa, len) || listen(s, 128)) {
		int e = errno;

		close(s);
		return rwf_fail(e, "shm: listen: %s", strerror(e));
	}
	return s;
}

int shm_dial(const uint8_t *name, uint64_t deadline_ms, int cancel_fd)
{
	struct sockaddr_un sa;
	socklen_t len = address(name, &sa);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (s < 0)
		return rwf_fail(errno, "shm: socket: %s", strerror(errno));
	while (connect(s, (struct sockaddr *)&sa, len)) {
		int e = errno;

		/* A full backlog: the one case worth another try. */
		if (e == EAGAIN && rwb_now_ms() < deadline_ms) {
			int rc = rwb_connect_wait(-1, 0, cancel_fd, 1000000);

			if (rc == 0)
				continue;
			close(s);
			return rc;
		}
		if (e == EINTR)
			continue;
		close(s);
		if (e == ECONNREFUSED)
			return rwf_fail(e, "connect: nobody listens at the peer's shm endpoint: it has closed, or lives in another "
					   "network namespace");
		return rwf_fail(e == EAGAIN ? ETIMEDOUT : e, "connect: shm: %s", strerror(e));
	}
	return s;
}

/* Reports whether the peer runs as the same user, or as root, who needs no leave, unless any may come. */
bool shm_peer_allowed(int sock, bool any_user)
{
	struct ucred cred;
	socklen_t len = sizeof cred;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return false;
	return any_user || cred.uid == geteuid() || cred.uid == 0;
}

/*
 * Returns a file that becomes readable when the peer's process ends, -1 where the kernel or a pid namespace denies it. The
 * socket alone does not show that: children that the peer forked hold it open.
 */
int shm_peer_pidfd(int sock)
{
	struct ucred cred;
	socklen_t len = sizeof(int);
	int fd;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0)
		return fd;
	len = sizeof cred;
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.pid <= 0)
		return -1;
	return (int)syscall(SYS_pidfd_open, cred.pid, 0);
}

/* Sends a message without blocking, with a file unless fd is -1. Returns -EAGAIN, too, when too many files are in flight. */
int shm_send(int sock, const void *buf, size_t len, int fd)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {(void *)(uintptr_t)buf, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		memset(&control, 0, sizeof control);
		msg.msg_control = control.space;
		msg.msg_controllen = sizeof control.space;
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	for (;;) {
		if (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len)
			return 0;
		if (errno == ETOOMANYREFS || errno == ENOBUFS)
			return -EAGAIN;
		if (errno != EINTR)
			return errno ? -errno : -EIO;
	}
}

/*
 * Takes one message without blocking. Returns its length, 0 at the end of the connection, or a negative errno. *fd is the
 * file that came with it or -1; more than one, or one that could not be received, is -EPROTO.
 */
int shm_recv(int sock, void *buf, size_t cap, int *fd)
{
	enum { MOST = 4 };
	union {
		char space[CMSG_SPACE(MOST * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {buf, cap};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
	bool bad = false;
	ssize_t n;

	*fd = -1;
	do
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		int got[MOST];
		size_t bytes = c->cmsg_len - CMSG_LEN(0);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(got, CMSG_DATA(c), bytes < sizeof got ? bytes : sizeof got);
		for (size_t i = 0; i < bytes / sizeof(int); i++) {
			if (*fd < 0) {
				*fd = got[i];
				continue;
			}
			close(got[i]);
			bad = true;
		}
	}
	if (bad || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		return -EPROTO;
	}
	return (int)n;
}

/* A full socket needs no further byte: the peer has enough to wake for. */
void shm_wake(struct shm_qp *q)
{
	static const uint8_t byte = 'W';

	shm_send(q->sock, &byte, 1, -1);
}
