/* Addresses, interfaces and sockets. */
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int parse_port(const char *text, uint16_t *port)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || v > 65535)
		return -EINVAL;
	*port = (uint16_t)v;
	return 0;
}

int tcp_parse_address(const char *text, struct tcp_endpoint *out)
{
	char host[INET6_ADDRSTRLEN + 2];
	const char *port = NULL, *colon = strrchr(text, ':');
	size_t n = strlen(text);

	memset(out, 0, sizeof *out);
	if (*text == '[') {
		const char *close = strchr(text, ']');

		if (!close || (close[1] && close[1] != ':'))
			return -EINVAL;
		port = close[1] ? close + 2 : NULL;
		text++;
		n = (size_t)(close - text);
	} else if (colon && colon == strchr(text, ':')) {
		port = colon + 1;
		n = (size_t)(colon - text);
	}
	if (n == 0 || n >= sizeof host)
		return -EINVAL;
	memcpy(host, text, n);
	host[n] = 0;
	if (inet_pton(AF_INET, host, out->addr) == 1)
		out->ip = 4;
	else if (inet_pton(AF_INET6, host, out->addr) == 1)
		out->ip = 6;
	else
		return -EINVAL;
	return port ? parse_port(port, &out->port) : 0;
}

bool tcp_is_wildcard(const struct tcp_endpoint *address)
{
	static const uint8_t zero[16];

	return memcmp(address->addr, zero, sizeof zero) == 0;
}

/* Lists the addresses of interfaces that are up, except link-local ones, which need a scope. */
int tcp_list_addresses(char *buf, size_t cap)
{
	struct ifaddrs *list;
	size_t used = 0;
	int count = 0;

	if (getifaddrs(&list))
		return rwf_fail(errno, "list addresses: %s", strerror(errno));
	if (cap)
		*buf = 0;
	for (struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		const struct sockaddr *sa = ifa->ifa_addr;
		bool v6 = sa && sa->sa_family == AF_INET6;
		char text[INET6_ADDRSTRLEN + IFNAMSIZ];

		if (!sa || !(ifa->ifa_flags & IFF_UP) || (!v6 && sa->sa_family != AF_INET) ||
		    getnameinfo(sa, v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), text, sizeof text, NULL, 0,
				NI_NUMERICHOST) ||
		    strchr(text, '%') || used + strlen(text) + 2 > cap)
			continue;
		used += (size_t)sprintf(buf + used, "%s%s", count ? "\n" : "", text);
		count++;
	}
	freeifaddrs(list);
	return count;
}

/*
 * Opens a socket that sends at once, and a listener's connections after it. Its buffers are sized before connect and listen, which
 * agree on the window scale (tcp(7)).
 */
int tcp_socket(struct tcp_device *dev, int family)
{
	int on = 1, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return rwf_fail(errno, "open a socket: %s", strerror(errno));
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
	    (dev->sndbuf && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &dev->sndbuf, sizeof dev->sndbuf)) ||
	    (dev->rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &dev->rcvbuf, sizeof dev->rcvbuf))) {
		int err = errno;

		close(fd);
		return rwf_fail(err, "set up a socket with buffers of %d and %d bytes: %s", dev->sndbuf, dev->rcvbuf,
				strerror(err));
	}
	return fd;
}

/*
 * Reports whether the peer's host has not answered the last segment or window probe yet, and the time since its last answer. A
 * host whose buffer is full answers probes at growing intervals. Its limit on such answers (net.ipv4.tcp_invalid_ratelimit) may
 * drop one to a second probe soon after the first, so one unanswered probe means nothing. TCP_USER_TIMEOUT will not do, because it
 * takes a host for dead whose buffer is full because the owner does not poll (tcp_probe_timer in net/ipv4/tcp_timer.c).
 */
bool tcp_owes_answer(int fd, uint32_t *last_answer_ms)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof info;

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return false;
	*last_answer_ms = info.tcpi_last_ack_recv;
	return info.tcpi_probes > 1 || (info.tcpi_unacked && info.tcpi_last_ack_recv > info.tcpi_last_data_sent);
}
