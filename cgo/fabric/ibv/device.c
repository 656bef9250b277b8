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

enum { UNSET = -1, MAX_RETRY = 7 };

/* Reads an option that is a number within a range, UNSET where it is absent. */
static int number(const char *options, const char *key, int low, int high, int *out)
{
	char text[32], *end;
	long v;

	*out = UNSET;
	if (!rwb_option(options, key, text, sizeof text))
		return 0;
	errno = 0;
	v = strtol(text, &end, 10);
	if (errno || end == text || *end || v < low || v > high)
		return rwf_fail(EINVAL, "open ibv: option %s=%s is not a number from %d to %d", key, text, low, high);
	*out = (int)v;
	return 0;
}

struct options {
	int port, gid, mtu, arrival;
};

static int parse(const char *options, struct options *o, struct vb_device *dev)
{
	static const char *const known[] = {"port",  "gid", "mtu",           "tc",      "sl", "timeout",
					    "retry", "rnr", "min_rnr_timer", "arrival", NULL};
	int rc = rwb_option_check("ibv", options, known);

	if (rc || (rc = number(options, "port", 1, 255, &o->port)) || (rc = number(options, "gid", 0, 255, &o->gid)) ||
	    (rc = number(options, "mtu", 256, 4096, &o->mtu)) || (rc = number(options, "tc", 0, 255, &dev->tc)) ||
	    (rc = number(options, "sl", 0, 15, &dev->sl)) || (rc = number(options, "timeout", 1, 31, &dev->timeout)) ||
	    (rc = number(options, "retry", 0, MAX_RETRY, &dev->retry)) || (rc = number(options, "rnr", 0, MAX_RETRY, &dev->rnr)) ||
	    (rc = number(options, "min_rnr_timer", 0, 31, &dev->min_rnr_timer)) ||
	    (rc = number(options, "arrival", 0, 1, &o->arrival)))
		return rc;
	if (o->mtu != UNSET && (o->mtu & (o->mtu - 1)))
		return rwf_fail(EINVAL, "open ibv: option mtu=%d is not one of 256, 512, 1024, 2048, 4096", o->mtu);
	dev->arrival = o->arrival != 0;
	dev->gid_option = o->gid;
	return 0;
}

static const char *port_state(enum ibv_port_state s)
{
	static const char *const names[] = {"in no state", "down", "initialising", "armed", "active", "active, deferred"};

	return s < sizeof names / sizeof *names ? names[s] : "in an unknown state";
}

static int choose_port(struct vb_device *dev, int wanted, uint8_t ports, struct ibv_port_attr *attr)
{
	int last = wanted == UNSET ? ports : wanted;

	if (wanted > ports)
		return rwf_fail(EINVAL, "open ibv: device %s has ports 1 to %u, not %d", dev->attr.name, ports, wanted);
	for (int port = wanted == UNSET ? 1 : wanted; port <= last; port++) {
		int err = vb_query_port(dev, (uint8_t)port, attr);

		if (err)
			return rwf_fail(err, "open ibv: query port %d of %s: %s", port, dev->attr.name, strerror(err));
		dev->port = (uint8_t)port;
		if (attr->state == IBV_PORT_ACTIVE)
			return 0;
	}
	if (wanted == UNSET)
		return rwf_fail(ENETDOWN, "open ibv: device %s has no active port: bring its link up", dev->attr.name);
	return rwf_fail(ENETDOWN, "open ibv: port %d of %s is %s: bring its link up", wanted, dev->attr.name,
			port_state(attr->state));
}

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
	return 128u << mtu;
}

static int choose_mtu(struct vb_device *dev, int wanted, enum ibv_mtu active)
{
	dev->mtu = active;
	if (wanted == UNSET)
		return 0;
	if ((uint32_t)wanted > mtu_bytes(active))
		return rwf_fail(EINVAL, "open ibv: mtu=%d, but port %u of %s carries %u: raise its interface's MTU", wanted,
				dev->port, dev->attr.name, mtu_bytes(active));
	while (mtu_bytes(dev->mtu) > (uint32_t)wanted)
		dev->mtu--;
	return 0;
}

/* ibv_query_port(3): active_speed and active_width are bit masks with one bit set. */
static uint32_t link_mbps(const struct ibv_port_attr *p)
{
	static const uint32_t lane_mbps[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000};
	uint32_t lanes = p->active_width == 16  ? 2
			 : p->active_width == 8 ? 12
			 : p->active_width == 4 ? 8
			 : p->active_width == 2 ? 4
						: 1;

	for (int bit = 7; bit >= 0; bit--)
		if (p->active_speed & 1 << bit)
			return lanes * lane_mbps[bit];
	return 0;
}

/* Probes how much the device sends inline, since it does not say. */
static uint32_t probe_inline(struct vb_device *dev)
{
	struct ibv_pd *pd = dev->lib->alloc_pd(dev->ctx);
	struct ibv_cq *cq = pd ? dev->lib->create_cq(dev->ctx, 1, NULL, NULL, 0) : NULL;
	uint32_t found = 0;

	for (uint32_t size = 1024; cq && size >= 32; size /= 2) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_inline_data = size}};
		struct ibv_qp *qp = dev->lib->create_qp(pd, &init);

		if (!qp)
			continue;
		found = init.cap.max_inline_data;
		dev->lib->destroy_qp(qp);
		break;
	}
	if (cq)
		dev->lib->destroy_cq(cq);
	if (pd)
		dev->lib->dealloc_pd(pd);
	return found;
}

static uint32_t at_most(int64_t v, uint32_t limit)
{
	return v < 0 || v > limit ? limit : (uint32_t)v;
}

static int set_up(struct vb_device *dev, const struct options *o)
{
	struct ibv_device_attr d;
	struct ibv_port_attr port;
	int rc = dev->lib->query_device(dev->ctx, &d);

	if (rc)
		return rwf_fail(rc, "open ibv: query device %s: %s", dev->attr.name, strerror(rc));
	if ((rc = choose_port(dev, o->port, d.phys_port_cnt, &port)) || (rc = choose_mtu(dev, o->mtu, port.active_mtu)) ||
	    (rc = vb_choose_address(dev, &port)))
		return rc;
	strcpy(dev->attr.provider, "ibv");
	dev->attr.max_mr_size = d.max_mr_size;
	dev->attr.max_qp = at_most(d.max_qp, VB_MAX_QP);
	dev->attr.max_qp_wr = at_most(d.max_qp_wr, 1 << 20);
	dev->attr.max_cq = at_most(d.max_cq, INT32_MAX);
	dev->attr.max_cqe = at_most(d.max_cqe, 1 << 22);
	dev->attr.max_mr = at_most(d.max_mr, INT32_MAX);
	dev->attr.max_inline = probe_inline(dev);
	dev->attr.link_mbps = link_mbps(&port);
	dev->attr.mtu = mtu_bytes(dev->mtu);
	dev->attr.flags = RWF_DEV_LINK;
	return fcntl(dev->ctx->async_fd, F_SETFL, O_NONBLOCK) ? rwf_fail(errno, "open ibv: %s", strerror(errno)) : 0;
}

static void dispose(struct vb_device *dev)
{
	if (dev->ctx)
		dev->lib->close_device(dev->ctx);
	if (dev->kick_fd >= 0)
		close(dev->kick_fd);
	pthread_mutex_destroy(&dev->lock);
	free(dev->qps);
	free(dev);
}

static int open_one(const struct vb_lib *lib, struct ibv_device *device, const char *options, rwf_device **out)
{
	struct vb_device *dev = calloc(1, sizeof *dev);
	struct options o;
	int rc;

	if (!dev)
		return rwf_fail(ENOMEM, "open ibv: no memory for a device");
	dev->base.ops = &rwf_ibv_ops;
	dev->lib = lib;
	dev->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	dev->qps = calloc(VB_MAX_QP, sizeof *dev->qps); /* the pages come with use */
	pthread_mutex_init(&dev->lock, NULL);
	snprintf(dev->attr.name, sizeof dev->attr.name, "%s", lib->get_device_name(device));
	if (dev->kick_fd < 0 || !dev->qps)
		rc = rwf_fail(ENOMEM, "open ibv: no memory for a device");
	else if ((rc = parse(options, &o, dev)) == 0 && !(dev->ctx = lib->open_device(device)))
		rc = rwf_fail(errno, "open ibv: device %s: %s: may this user open /dev/infiniband/uverbs*?", dev->attr.name,
			      strerror(errno));
	else if (rc == 0)
		rc = set_up(dev, &o);
	if (rc) {
		dispose(dev);
		return rc;
	}
	*out = &dev->base;
	return 0;
}

static int no_device(const char *wanted)
{
	return rwf_fail(
		ENODEV,
		"open ibv: no RDMA device%s%s: see ibv_devices; a driver's user half is in ibverbs-providers; soft-RoCE: rackweave "
		"rxe up",
		*wanted ? " named " : "", wanted);
}

int vb_open(const char *device, const char *options, rwf_device **out)
{
	const struct vb_lib *lib;
	struct ibv_device **list;
	int n, rc = vb_load(&lib);

	if (rc)
		return rc;
	list = lib->get_device_list(&n);
	rc = no_device(device);
	for (int i = 0; list && i < n; i++) {
		if (*device && strcmp(device, lib->get_device_name(list[i])) != 0)
			continue;
		rc = open_one(lib, list[i], options, out);
		if (*device || rc != -ENETDOWN) /* any device: skip those without a link */
			break;
	}
	if (list)
		lib->free_device_list(list);
	return rc;
}

int vb_list(char *buf, size_t cap)
{
	const struct vb_lib *lib;
	struct ibv_device **list;
	size_t used = 0;
	int n, rc = vb_load(&lib);

	if (rc)
		return rc;
	if (cap)
		*buf = 0;
	list = lib->get_device_list(&n);
	if (!list)
		return 0; /* the kernel has no RDMA */
	for (int i = 0; i < n; i++) {
		int k = snprintf(buf + used, cap - used, "%s%s", i ? "\n" : "", lib->get_device_name(list[i]));

		if ((size_t)k >= cap - used) {
			n = rwf_fail(ENOSPC, "list devices of ibv: %zu bytes do not hold their names", cap);
			break;
		}
		used += (size_t)k;
	}
	lib->free_device_list(list);
	return n;
}

int vb_close(rwf_device *base)
{
	struct vb_device *dev = (struct vb_device *)base;
	uint32_t pds, cqs;

	pthread_mutex_lock(&dev->lock);
	pds = dev->pds;
	cqs = dev->cqs;
	pthread_mutex_unlock(&dev->lock);
	if (pds || cqs)
		return rwf_fail(EBUSY, "close device %s: %u protection domains and %u completion queues are open", dev->attr.name,
				pds, cqs);
	dispose(dev);
	return 0;
}

int vb_query(rwf_device *base, struct rwf_device_attr *out)
{
	*out = ((struct vb_device *)base)->attr;
	return 0;
}

int rwf_ibv_stats(const rwf_qp *qp, struct rwf_ibv_stats *out)
{
	if (qp->ops != &rwf_ibv_ops)
		return rwf_fail(EINVAL, "queue pair 0x%x is of provider %s, not ibv", qp->num, qp->ops->name);
	*out = ((const struct vb_qp *)qp)->stats;
	return 0;
}

const struct rwf_ops rwf_ibv_ops = {
	.name = "ibv",
	.open = vb_open,
	.list = vb_list,
	.close = vb_close,
	.query = vb_query,
	.alloc_pd = vb_alloc_pd,
	.dealloc_pd = vb_dealloc_pd,
	.reg_mr = vb_reg_mr,
	.dereg_mr = vb_dereg_mr,
	.create_cq = vb_create_cq,
	.destroy_cq = vb_destroy_cq,
	.poll_cq = vb_poll_cq,
	.req_notify_cq = vb_req_notify_cq,
	.wait_cq = vb_wait_cq,
	.wake_cq = vb_wake_cq,
	.create_qp = vb_create_qp,
	.destroy_qp = vb_destroy_qp,
	.qp_endpoint = vb_qp_endpoint,
	.connect_qp = vb_connect_qp,
	.fail_qp = vb_fail_qp,
	.post_send = vb_post_send,
	.post_recv = vb_post_recv,
	.get_async_event = vb_get_async_event,
};

#else

#include "ibv.h"
#include "../base/provider.h"

#include <errno.h>

static int absent(void)
{
	return rwf_fail(ENOSYS, "this program was built without libibverbs' headers: apt-get install libibverbs-dev, build again");
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

const struct rwf_ops rwf_ibv_ops = {.name = "ibv", .open = open_absent, .list = list_absent};

int rwf_ibv_stats(const rwf_qp *qp, struct rwf_ibv_stats *out)
{
	(void)qp, (void)out;
	return absent();
}

#endif
