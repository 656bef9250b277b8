/* Provider shm: the Unix sockets. They carry packets, not a stream, so a message is whole on any thread. */
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

/* Opens a socket, and writes the address of a name. */
static int open_for(const uint8_t *name, struct sockaddr_un *sa, socklen_t *len)
{
	char hex[2 * SHM_COOKIE + 1];
	int n, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	for (int i = 0; i < SHM_COOKIE; i++)
		snprintf(hex + 2 * i, 3, "%02x", name[i]);
	memset(sa, 0, sizeof *sa);
	sa->sun_family = AF_UNIX;
	n = snprintf(sa->sun_path + 1, sizeof sa->sun_path - 1, "rackweave-shm-%s", hex);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	return s < 0 ? rwf_fail(errno, "shm: socket: %s", strerror(errno)) : s;
}

int shm_listen(const uint8_t *name)
{
	struct sockaddr_un sa;
	socklen_t len;
	int s = open_for(name, &sa, &len);

	if (s < 0)
		return s;
	if (bind(s, (struct sockaddr *)&sa, len) || listen(s, 128)) {
		int e = errno;

		shm_close_own(s);
		return rwf_fail(e, "shm: listen: %s", strerror(e));
	}
	return s;
}

int shm_dial(const uint8_t *name, uint64_t deadline_ms, int cancel_fd)
{
	struct sockaddr_un sa;
	socklen_t len;
	int s = open_for(name, &sa, &len);

	if (s < 0)
		return s;
	while (connect(s, (struct sockaddr *)&sa, len)) {
		int e = errno;

		/* Only a full backlog is worth another try. */
		if (e == EAGAIN && rwb_now_ms() < deadline_ms) {
			int rc = rwb_connect_wait(-1, 0, cancel_fd, 1000000);

			if (rc == 0)
				continue;
			shm_close_own(s);
			return rc;
		}
		if (e == EINTR)
			continue;
		shm_close_own(s);
		if (e == ECONNREFUSED)
			return rwf_fail(e, "connect: nobody listens at the peer's shm endpoint: it has closed, or lives in another "
					   "network namespace");
		return rwf_fail(e == EAGAIN ? ETIMEDOUT : e, "connect: shm: %s", strerror(e));
	}
	return s;
}

/* Reports whether the peer runs as the same user, or as root. With any_user every peer is allowed. */
bool shm_peer_allowed(int sock, bool any_user)
{
	struct ucred cred;
	socklen_t len = sizeof cred;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return false;
	return any_user || cred.uid == geteuid() || cred.uid == 0;
}

/*
 * Returns a file that becomes readable when the peer's process ends, or -1 if the kernel or a pid namespace denies it. The socket
 * alone does not show the end, because children that the peer forked hold it open.
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

/* Sends a message without blocking, with a file unless fd is -1. Also returns -EAGAIN if too many files are in flight. */
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
 * Takes one message without blocking. Returns its length, 0 at the end of the connection, or a negative errno. fd is the file that
 * came with it or -1. More than one file, a file that could not be received, or a file without a byte, is -EPROTO. The buffer has
 * room for as many files as can arrive, because the kernel would close the others here.
 */
int shm_recv(int sock, void *buf, size_t cap, int *fd)
{
	enum { MOST = 253 }; /* SCM_MAX_FD */
	union {
		char space[CMSG_SPACE(MOST * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {buf, cap};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
	bool bad;
	ssize_t n;

	*fd = -1;
	do
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	bad = n == 0 && msg.msg_controllen;
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
			shm_close_received(got[i]);
			bad = true;
		}
	}
	if (bad || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		shm_close_received(*fd);
		*fd = -1;
		return -EPROTO;
	}
	return (int)n;
}

/* Ends a connection. Closing it would also close the files in unread messages, so these are taken out before. */
void shm_hang_up(int sock)
{
	struct shm_ctl c;
	int on = 1, fd, n;

	shutdown(sock, SHUT_RDWR);
	/* From here on an empty message differs from the end, because it has credentials. */
	setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
	do
		n = shm_recv(sock, &c, sizeof c, &fd);
	while ((n > 0 && shm_close_received(fd)) || n == -ECONNRESET);
	if (n == 0)
		shm_close_own(sock);
	else
		shm_close_later(sock);
}

/* A full socket needs no further byte, because the peer has enough to wake for. */
void shm_wake(struct shm_qp *q)
{
	static const uint8_t byte = 'W';

	shm_send(q->sock, &byte, 1, -1);
}
