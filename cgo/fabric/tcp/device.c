/*
 * Provider tcp: devices.
 *
 * A device is a local address; "" is 127.0.0.1. Options:
 *
 *	listen=ADDR[:PORT]     where peers connect to; default: the device's address, any free port. IPv6 as [ADDR]:PORT
 *	advertise=ADDR[:PORT]  what endpoints say instead, where peers see another address or port
 *	peer=ADDR              where a peer is that listens on every address, 0.0.0.0 or ::, and advertises none
 *	sndbuf=BYTES           socket buffers; the kernel tunes them itself by default, and caps these at net.core.wmem_max
 *	rcvbuf=BYTES           and rmem_max
 *	encrypt=yes            encrypt connections, whatever the peer's device says; default: where the peer's wants it
 *	window=BYTES           most a peer may have on its way to a queue pair unacknowledged, 512 KiB by default
 */
#include "tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

static int option_bytes(const char *options, const char *key, uint32_t least, uint32_t most, uint32_t *value)
{
	char text[32], *end;
	unsigned long v;

	if (!rwb_option(options, key, text, sizeof text))
		return 0;
	v = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || v < least || v > most)
		return rwf_fail(EINVAL, "provider tcp: option %s=%s: give a number of bytes from %u to %u", key, text, least, most);
	*value = (uint32_t)v;
	return 0;
}

/* Returns 1 when the option was there and is in out. */
static int option_address(const char *options, const char *key, struct tcp_endpoint *out)
{
	char text[96];

	if (!rwb_option(options, key, text, sizeof text))
		return 0;
	if (tcp_parse_address(text, out))
		return rwf_fail(EINVAL, "provider tcp: option %s=%s: give ADDR, ADDR:PORT or [ADDR6]:PORT", key, text);
	return 1;
}

/* Reads what to listen on into listen_on, and dev's name, source and address. */
static int read_addresses(struct tcp_device *dev, const char *device, const char *options, struct tcp_endpoint *listen_on)
{
	int rc;

	snprintf(dev->name, sizeof dev->name, "%s", *device ? device : "127.0.0.1");
	if (tcp_parse_address(dev->name, listen_on) || listen_on->port)
		return rwf_fail(ENODEV, "provider tcp: device \"%s\" is not an address of this host: list the devices", device);
	if (*device && !tcp_is_wildcard(listen_on))
		dev->source = *listen_on;
	rc = option_address(options, "listen", listen_on);
	if (rc < 0)
		return rc;
	dev->address = *listen_on;
	rc = option_address(options, "advertise", &dev->address);
	if (rc >= 0)
		rc = option_address(options, "peer", &dev->peer);
	return rc < 0 ? rc : 0;
}

static int read_encrypt(struct tcp_device *dev, const char *options)
{
	char text[8] = "no";

	rwb_option(options, "encrypt", text, sizeof text);
	if (strcmp(text, "yes") && strcmp(text, "no"))
		return rwf_fail(EINVAL, "provider tcp: option encrypt=%s: give yes or no", text);
	dev->address.encrypt = !strcmp(text, "yes");
	return dev->address.encrypt ? tcp_seal_load() : 0;
}

static int start_listening(struct tcp_device *dev, const struct tcp_endpoint *at)
{
	struct sockaddr_storage sa;
	socklen_t len = tcp_endpoint_sockaddr(at, &sa);
	int only_v6 = !tcp_is_wildcard(at); /* every address is that of both families */
	int on = 1, fd = tcp_socket(dev, at->family);

	if (fd < 0)
		return fd;
	dev->listen_fd = fd;
	if (at->family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, (struct sockaddr *)&sa, len) || listen(fd, 1024))
		return rwf_fail(errno, "listen on %s port %u: %s", dev->name, at->port, strerror(errno));
	if (getsockname(fd, (struct sockaddr *)&sa, &len))
		return rwf_fail(errno, "read the listening port: %s", strerror(errno));
	if (!dev->address.port)
		dev->address.port = ntohs(at->family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
								 : ((struct sockaddr_in *)&sa)->sin_port);
	return 0;
}

static int release(struct tcp_device *dev)
{
	for (int i = 0; i < TCP_MAX_HALF_OPEN; i++)
		if (dev->half[i].fd >= 0)
			close(dev->half[i].fd);
	if (dev->listen_fd >= 0)
		close(dev->listen_fd);
	if (dev->event_fd >= 0)
		close(dev->event_fd);
	pthread_mutex_destroy(&dev->lock);
	pthread_mutex_destroy(&dev->mr_lock);
	pthread_mutex_destroy(&dev->accept_lock);
	free(dev->mrs);
	free(dev);
	return 0;
}

static int set_up(struct tcp_device *dev, const char *device, const char *options)
{
	static const char *const known[] = {"listen", "advertise", "peer", "sndbuf", "rcvbuf", "window", "encrypt", NULL};
	struct tcp_endpoint listen_on;
	int rc = rwb_option_check("tcp", options, known);

	if (rc || (rc = read_addresses(dev, device, options, &listen_on)) || (rc = read_encrypt(dev, options)) ||
	    (rc = option_bytes(options, "sndbuf", 64 << 10, 1 << 30, &dev->sndbuf)) ||
	    (rc = option_bytes(options, "rcvbuf", 64 << 10, 1 << 30, &dev->rcvbuf)) ||
	    (rc = option_bytes(options, "window", TCP_MIN_WINDOW, TCP_MAX_WINDOW, &dev->window)))
		return rc;
	dev->mrs = calloc(TCP_MAX_MR, sizeof *dev->mrs);
	if (!dev->mrs)
		return rwf_fail(ENOMEM, "open provider tcp: out of memory");
	if (getrandom(&dev->qp_generation, sizeof dev->qp_generation, 0) != sizeof dev->qp_generation)
		return rwf_fail(errno, "read random bytes: %s", strerror(errno));
	dev->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (dev->event_fd < 0)
		return rwf_fail(errno, "open an eventfd: %s", strerror(errno));
	dev->link_mbps = tcp_link_mbps(&listen_on);
	return start_listening(dev, &listen_on);
}

static int tcp_open(const char *device, const char *options, rwf_device **out)
{
	struct tcp_device *dev = calloc(1, sizeof *dev);
	int rc;

	if (!dev)
		return rwf_fail(ENOMEM, "open provider tcp: out of memory");
	dev->head.ops = &rwf_tcp_ops;
	dev->window = 512 << 10;
	dev->listen_fd = dev->event_fd = -1;
	for (int i = 0; i < TCP_MAX_HALF_OPEN; i++)
		dev->half[i].fd = -1;
	pthread_mutex_init(&dev->lock, NULL);
	pthread_mutex_init(&dev->mr_lock, NULL);
	pthread_mutex_init(&dev->accept_lock, NULL);
	rc = set_up(dev, device, options);
	if (rc) {
		release(dev);
		return rc;
	}
	*out = &dev->head;
	return 0;
}

static int tcp_close(rwf_device *head)
{
	struct tcp_device *dev = (struct tcp_device *)head;

	if (atomic_load(&dev->pd_count) || !LIST_EMPTY(&dev->cqs))
		return rwf_fail(EBUSY, "close device %s: protection domains or completion queues of it are open", dev->name);
	return release(dev);
}

static int tcp_query(rwf_device *head, struct rwf_device_attr *out)
{
	struct tcp_device *dev = (struct tcp_device *)head;

	snprintf(out->provider, sizeof out->provider, "tcp");
	snprintf(out->name, sizeof out->name, "%s", dev->name);
	out->max_mr_size = (uint64_t)1 << 47;
	out->max_qp = TCP_MAX_QP;
	out->max_qp_wr = TCP_MAX_WR;
	out->max_cq = TCP_MAX_CQ;
	out->max_cqe = TCP_MAX_CQE;
	out->max_mr = TCP_MAX_MR;
	out->max_inline = TCP_MAX_INLINE;
	out->link_mbps = dev->link_mbps;
	out->flags = RWF_DEV_ANY_MEMORY;
	out->qp_bytes = tcp_seal_bytes(); /* the peer may want it, whatever this device says */
	return 0;
}

const struct rwf_ops rwf_tcp_ops = {
	.name = "tcp",
	.open = tcp_open,
	.list = tcp_list_addresses,
	.close = tcp_close,
	.query = tcp_query,
	.alloc_pd = tcp_alloc_pd,
	.dealloc_pd = tcp_dealloc_pd,
	.reg_mr = tcp_reg_mr,
	.dereg_mr = tcp_dereg_mr,
	.create_cq = tcp_create_cq,
	.destroy_cq = tcp_destroy_cq,
	.poll_cq = tcp_poll_cq,
	.req_notify_cq = tcp_req_notify_cq,
	.wait_cq = tcp_wait_cq,
	.wake_cq = tcp_wake_cq,
	.create_qp = tcp_create_qp,
	.destroy_qp = tcp_destroy_qp,
	.qp_endpoint = tcp_qp_endpoint,
	.connect_qp = tcp_connect_qp,
	.fail_qp = tcp_fail_qp,
	.post_send = tcp_post_send,
	.post_recv = tcp_post_recv,
	.get_async_event = tcp_get_async_event,
};
