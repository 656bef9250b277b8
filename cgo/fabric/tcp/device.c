/*
 * Provider tcp: devices.
 *
 * A device is a local address; "" is 127.0.0.1. Options:
 *
 *	listen=ADDR[:PORT]     where peers connect to; default: the device's address, any free port. IPv6 as [ADDR]:PORT
 *	advertise=ADDR[:PORT]  the address in endpoints, if peers see another address or port
 *	sndbuf=BYTES           socket buffers; the kernel tunes them itself by default, and caps these at net.core.wmem_max
 *	rcvbuf=BYTES           and rmem_max
 *	encrypt=yes            encrypt connections; by default those of peers whose device encrypts
 *	window=BYTES           bytes that a peer may send to a queue pair unacknowledged, 512 KiB by default
 */
#include "tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the address of an option, if it is there. */
static int option_address(const char *key, const char *text, struct tcp_endpoint *out)
{
	if (*text && tcp_parse_address(text, out))
		return rwf_fail(EINVAL, "provider tcp: option %s=%s: give ADDR, ADDR:PORT or [ADDR6]:PORT", key, text);
	return 0;
}

static int start_listening(struct tcp_device *dev, const struct tcp_endpoint *at)
{
	struct sockaddr_storage sa;
	socklen_t len = tcp_endpoint_sockaddr(at, &sa);
	int only_v6 = !tcp_is_wildcard(at); /* a wildcard is for both families */
	int on = 1, fd = tcp_socket(dev, tcp_family(at));

	if (fd < 0)
		return fd;
	dev->door.listen_fd = fd;
	if (at->ip == 6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, (struct sockaddr *)&sa, len) || listen(fd, 1024))
		return rwf_fail(errno, "listen on %s port %u: %s", dev->door.device.head.attr.name, at->port, strerror(errno));
	if (getsockname(fd, (struct sockaddr *)&sa, &len))
		return rwf_fail(errno, "read the listening port: %s", strerror(errno));
	if (!dev->address.port)
		dev->address.port = ntohs(((struct sockaddr_in *)&sa)->sin_port); /* one of IPv6 is at the same place */
	return 0;
}

static int release(struct tcp_device *dev)
{
	rwb_door_empty(&dev->door);
	if (dev->door.listen_fd >= 0)
		close(dev->door.listen_fd);
	rwb_door_free(&dev->door);
	return 0;
}

/* Reads the device's name, source, address and options, and listens. */
static int set_up(struct tcp_device *dev, const char *device, const char *options)
{
	char listen[RWB_OPTION_TEXT] = "", advertise[RWB_OPTION_TEXT] = "";
	int window = 512 << 10, encrypt = 0, rc;
	const struct rwb_option known[] = {
		{"listen", .text = listen},
		{"advertise", .text = advertise},
		RWB_NUMBER("sndbuf", &dev->sndbuf, 64 << 10, 1 << 30),
		RWB_NUMBER("rcvbuf", &dev->rcvbuf, 64 << 10, 1 << 30),
		RWB_NUMBER("window", &window, TCP_MIN_WINDOW, TCP_MAX_WINDOW),
		{"encrypt", &encrypt, .words = {"no", "yes"}},
	};
	char *name = dev->door.device.head.attr.name;
	struct tcp_endpoint listen_on;

	if ((rc = RWB_READ_OPTIONS("tcp", options, known)))
		return rc;
	snprintf(name, sizeof dev->door.device.head.attr.name, "%s", *device ? device : "127.0.0.1");
	if (tcp_parse_address(name, &listen_on) || listen_on.port)
		return rwf_fail(ENODEV, "provider tcp: device \"%s\" is not an address of this host: list the devices", device);
	if (*device && !tcp_is_wildcard(&listen_on))
		dev->source = listen_on;
	if ((rc = option_address("listen", listen, &listen_on)))
		return rc;
	dev->address = listen_on;
	if ((rc = option_address("advertise", advertise, &dev->address)) || (encrypt && (rc = tcp_tls_probe())))
		return rc;
	dev->address.encrypt = (uint16_t)encrypt;
	dev->window = (uint32_t)window;
	return start_listening(dev, &listen_on);
}

static int tcp_open(const char *device, const char *options, rwf_device **out)
{
	static const struct rwf_device_attr attr = {.provider = "tcp",
						    .max_mr_size = (uint64_t)1 << 47,
						    .max_qp = 4096,
						    .max_qp_wr = TCP_MAX_WR,
						    .max_cq = 1024,
						    .max_cqe = 1 << 20,
						    .max_mr = 1 << 16,
						    .max_inline = 512,
						    .flags = RWF_DEV_ANY_MEMORY};
	struct tcp_device *dev = calloc(1, sizeof *dev);
	int rc;

	if (!dev)
		return rwf_fail(ENOMEM, "open provider tcp: out of memory");
	rc = rwb_door_make(&dev->door, &rwf_tcp_ops, &attr, &tcp_door_ops);
	if (!rc)
		rc = set_up(dev, device, options);
	if (rc) {
		release(dev);
		return rc;
	}
	*out = &dev->door.device.head;
	return 0;
}

static int tcp_close(rwf_device *head)
{
	return release((struct tcp_device *)head);
}

const struct rwf_ops rwf_tcp_ops = {.name = "tcp",
				    .open = tcp_open,
				    .list = tcp_list_addresses,
				    .close = tcp_close,
				    .rest_cq = tcp_rest_cq,
				    RWB_COMMON_CALLS(RWB_ENTRY, rwb_) RWB_OWN_CALLS(RWB_ENTRY, tcp_)};
