/* Provider ibv: finding a device, its port and its limits; the operations table. */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A retry count of 7 means for ever for RNR, and on soft-RoCE also for lost packets, against the specification. */
enum { DEFAULT_RETRY = 6, MAX_RETRY = 7 };

static int parse(const char *options, int *port, struct vb_device *dev)
{
	const struct rwb_option known[] = {
		RWB_NUMBER("port", port, 1, 255),
		RWB_NUMBER("gid", &dev->gid_option, 0, 255),
		RWB_NUMBER("tc", &dev->tc, 0, 255),
		RWB_NUMBER("sl", &dev->sl, 0, 15),
		RWB_NUMBER("timeout", &dev->timeout, 1, 31),
		RWB_NUMBER("retry", &dev->retry, 0, MAX_RETRY),
		RWB_NUMBER("arrival", &dev->arrival, 0, 1),
	};

	*port = 0;
	dev->gid_option = -1;
	dev->retry = DEFAULT_RETRY;
	dev->arrival = 1;
	return RWB_READ_OPTIONS("ibv", options, known);
}

static int choose_port(struct vb_device *dev, int wanted, uint8_t ports, struct ibv_port_attr *attr)
{
	int last = wanted ? wanted : ports;

	if (wanted > ports)
		return rwf_fail(EINVAL, "open ibv: device %s has ports 1 to %u, not %d", dev->base.attr.name, ports, wanted);
	for (int port = wanted ? wanted : 1; port <= last; port++) {
		int err = vb_query_port(dev, (uint8_t)port, attr);

		if (err)
			return rwf_fail(err, "open ibv: query port %d of %s: %s", port, dev->base.attr.name, strerror(err));
		dev->port = (uint8_t)port;
		if (attr->state == IBV_PORT_ACTIVE)
			return 0;
	}
	if (!wanted)
		return rwf_fail(ENETDOWN, "open ibv: device %s has no active port: bring its link up", dev->base.attr.name);
	return rwf_fail(ENETDOWN, "open ibv: port %d of %s is %s: bring its link up", wanted, dev->base.attr.name,
			vb_lib.port_state_str(attr->state));
}

static uint32_t at_most(int64_t v, uint32_t limit)
{
	return v < 0 || v > limit ? limit : (uint32_t)v;
}

static int set_up(struct vb_device *dev, int wanted_port)
{
	struct ibv_device_attr d;
	struct ibv_port_attr port;
	int rc = vb_lib.query_device(dev->ctx, &d);

	if (rc)
		return rwf_fail(rc, "open ibv: query device %s: %s", dev->base.attr.name, strerror(rc));
	if ((rc = choose_port(dev, wanted_port, d.phys_port_cnt, &port)) || (rc = vb_choose_address(dev, &port)))
		return rc;
	dev->mtu = port.active_mtu;
	strcpy(dev->base.attr.provider, "ibv");
	dev->base.attr.max_mr_size = d.max_mr_size;
	dev->base.attr.max_qp = at_most(d.max_qp, VB_MAX_QP);
	dev->base.attr.max_qp_wr = at_most(d.max_qp_wr, 1 << 20);
	dev->base.attr.max_cq = at_most(d.max_cq, INT32_MAX);
	dev->base.attr.max_cqe = at_most(d.max_cqe, 1 << 22);
	dev->base.attr.max_mr = at_most(d.max_mr, INT32_MAX);
	dev->base.attr.mtu = 128u << dev->mtu;
	dev->base.attr.flags = RWF_DEV_LINK;
	return fcntl(dev->ctx->async_fd, F_SETFL, O_NONBLOCK) ? rwf_fail(errno, "open ibv: %s", strerror(errno)) : 0;
}

static void dispose(struct vb_device *dev)
{
	if (dev->ctx)
		vb_lib.close_device(dev->ctx);
	if (dev->kick_fd >= 0)
		close(dev->kick_fd);
	pthread_mutex_destroy(&dev->lock);
	free(dev->qps);
	free(dev);
}

static int open_one(struct ibv_device *device, const char *options, rwf_device **out)
{
	struct vb_device *dev = calloc(1, sizeof *dev);
	int port, rc;

	if (!dev)
		return rwf_fail(ENOMEM, "open ibv: no memory for a device");
	dev->base.ops = &rwf_ibv_ops;
	dev->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	dev->qps = calloc(VB_MAX_QP, sizeof *dev->qps); /* the pages come with use */
	pthread_mutex_init(&dev->lock, NULL);
	snprintf(dev->base.attr.name, sizeof dev->base.attr.name, "%s", vb_lib.get_device_name(device));
	if (dev->kick_fd < 0 || !dev->qps)
		rc = rwf_fail(ENOMEM, "open ibv: no memory for a device");
	else if ((rc = parse(options, &port, dev)) == 0 && !(dev->ctx = vb_lib.open_device(device)))
		rc = rwf_fail(errno, "open ibv: device %s: %s: may this user open /dev/infiniband/uverbs*?", dev->base.attr.name,
			      strerror(errno));
	else if (rc == 0)
		rc = set_up(dev, port);
	if (rc) {
		dispose(dev);
		return rc;
	}
	*out = &dev->base;
	return 0;
}

/* Names the devices that there are, of n. */
static int no_device(const char *wanted, struct ibv_device **list, int n)
{
	char there[256] = "";
	size_t used = 0;

	for (int i = 0; list && i < n && used < sizeof there; i++)
		used += (size_t)snprintf(there + used, sizeof there - used, "%s%s", i ? ", " : ": there are ",
					 vb_lib.get_device_name(list[i]));
	return rwf_fail(
		ENODEV,
		"open ibv: no RDMA device%s%s%s: see ibv_devices; a driver's user half is in ibverbs-providers; soft-RoCE: rackweave "
		"rxe up",
		*wanted ? " named " : "", wanted, there);
}

static int vb_open(const char *device, const char *options, rwf_device **out)
{
	struct ibv_device **list;
	int n, rc = vb_load();

	if (rc)
		return rc;
	list = vb_lib.get_device_list(&n);
	rc = no_device(device, list, n);
	for (int i = 0; list && i < n; i++) {
		if (*device && strcmp(device, vb_lib.get_device_name(list[i])) != 0)
			continue;
		rc = open_one(list[i], options, out);
		if (*device || rc != -ENETDOWN) /* any device: skip a device without a link */
			break;
	}
	if (list)
		vb_lib.free_device_list(list);
	return rc;
}

static int vb_list(char *buf, size_t cap)
{
	struct ibv_device **list;
	size_t used = 0;
	int n, rc = vb_load();

	if (rc)
		return rc;
	if (cap)
		*buf = 0;
	list = vb_lib.get_device_list(&n);
	if (!list)
		return 0; /* the kernel has no RDMA */
	for (int i = 0; i < n; i++) {
		int k = snprintf(buf + used, cap - used, "%s%s", i ? "\n" : "", vb_lib.get_device_name(list[i]));

		if ((size_t)k >= cap - used) {
			n = rwf_fail(ENOSPC, "list devices of ibv: %zu bytes do not hold their names", cap);
			break;
		}
		used += (size_t)k;
	}
	vb_lib.free_device_list(list);
	return n;
}

static int vb_close(rwf_device *base)
{
	dispose((struct vb_device *)base);
	return 0;
}

const struct rwf_ops rwf_ibv_ops = {
	.name = "ibv", .nics = 1, .open = vb_open, .list = vb_list, .close = vb_close, RWB_CALLS(RWB_ENTRY, vb_)};

#else

#include "ibv.h"
#include "../base/provider.h"

#include <errno.h>

static int absent(void)
{
	/* Go's build cache does not see that headers of the system have come. */
	return rwf_fail(ENOSYS, "this program was built without libibverbs' headers: "
				"apt-get install libibverbs-dev, go clean -cache, build again");
}

static int open_absent(const char *device, const char *options, rwf_device **out)
{
	(void)device, (void)options, (void)out;
	return absent();
}

static int list_absent(char *buf, size_t cap)
{
	(void)buf, (void)cap;
	return absent();
}

const struct rwf_ops rwf_ibv_ops = {.name = "ibv", .nics = 1, .open = open_absent, .list = list_absent};

#endif
