/* Addresses, interfaces and sockets. */
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
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
		out->family = AF_INET;
	else if (inet_pton(AF_INET6, host, out->addr) == 1)
		out->family = AF_INET6;
	else
		return -EINVAL;
	return port ? parse_port(port, &out->port) : 0;
}

bool tcp_is_wildcard(const struct tcp_endpoint *address)
{
	static const uint8_t zero[16];

	return memcmp(address->addr, zero, sizeof zero) == 0;
}

/* Reads the address of an interface entry. family is 0 if it is of another kind, or link-local, which needs a scope. */
static void interface_address(const struct ifaddrs *ifa, struct tcp_endpoint *out)
{
	memset(out, 0, sizeof *out);
	if (!ifa->ifa_addr || !(ifa->ifa_flags & IFF_UP))
		return;
	if (ifa->ifa_addr->sa_family == AF_INET) {
		memcpy(out->addr, &((const struct sockaddr_in *)ifa->ifa_addr)->sin_addr, 4);
		out->family = AF_INET;
	} else if (ifa->ifa_addr->sa_family == AF_INET6) {
		const struct in6_addr *in6 = &((const struct sockaddr_in6 *)ifa->ifa_addr)->sin6_addr;

		if (IN6_IS_ADDR_LINKLOCAL(in6))
			return;
		memcpy(out->addr, in6, 16);
		out->family = AF_INET6;
	}
}

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
		char text[INET6_ADDRSTRLEN];
		struct tcp_endpoint a;

		interface_address(ifa, &a);
		if (!a.family || !inet_ntop(a.family, a.addr, text, sizeof text) || used + strlen(text) + 2 > cap)
			continue;
		used += (size_t)sprintf(buf + used, "%s%s", count ? "\n" : "", text);
		count++;
	}
	freeifaddrs(list);
	return count;
}

/* Returns the speed of the interface that has this address, 0 where it has none (loopback, virtual interfaces). */
uint32_t tcp_link_mbps(const struct tcp_endpoint *address)
{
	struct ifaddrs *list;
	long mbps = 0;

	if (getifaddrs(&list))
		return 0;
	for (struct ifaddrs *ifa = list; ifa && mbps == 0; ifa = ifa->ifa_next) {
		char path[64 + IFNAMSIZ];
		struct tcp_endpoint a;
		FILE *f;

		interface_address(ifa, &a);
		if (a.family != address->family || memcmp(a.addr, address->addr, sizeof a.addr) != 0)
			continue;
		snprintf(path, sizeof path, "/sys/class/net/%.*s/speed", IFNAMSIZ, ifa->ifa_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		if (fscanf(f, "%ld", &mbps) != 1 || mbps < 0)
			mbps = 0;
		fclose(f);
	}
	freeifaddrs(list);
	return (uint32_t)mbps;
}

/* Buffers are sized before connect and listen, because the window scale is agreed on there (tcp(7)). */
int tcp_socket(struct tcp_device *dev, int family)
{
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int sndbuf = (int)dev->sndbuf, rcvbuf = (int)dev->rcvbuf;

	if (fd < 0)
		return rwf_fail(errno, "open a socket: %s", strerror(errno));
	if ((sndbuf && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf)) ||
	    (rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf))) {
		int err = errno;

		close(fd);
		return rwf_fail(err, "size socket buffers (%d, %d bytes): %s", sndbuf, rcvbuf, strerror(err));
	}
	return fd;
}

int tcp_no_delay(int fd)
{
	int on = 1;

	return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ? rwf_fail(errno, "set TCP_NODELAY: %s", strerror(errno))
									: 0;
}

/*
 * Whether the peer's host has yet to answer the last segment or window probe sent to it, and how long ago it last answered
 * anything. A host whose buffer is full answers them, at growing intervals; only a second probe soon after the first may
 * fall to its limit on such answers (net.ipv4.tcp_invalid_ratelimit), so one unanswered probe means nothing. (That rules
 * out TCP_USER_TIMEOUT, which takes a host for dead whose buffer is full because the owner does not poll: tcp_probe_timer
 * in net/ipv4/tcp_timer.c.)
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
