/*
 * Provider ibv: the address of a device. The GID table follows the order in which addresses were assigned, and may change. So an
 * index is chosen by its entry, and tested by making an address handle from it.
 */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEVER = 100 };

static bool is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

static bool is_link_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

/* Lower is better. A routable address reaches further than a link-local one, and RoCE v2 further than v1. */
static int rank(const struct ibv_gid_entry *e)
{
	switch (e->gid_type) {
	case IBV_GID_TYPE_IB:
		return 0;
	case IBV_GID_TYPE_ROCE_V2:
		return is_ipv4(&e->gid) ? 0 : is_link_local(&e->gid) ? 2 : 1;
	case IBV_GID_TYPE_ROCE_V1:
		return is_link_local(&e->gid) ? 4 : 3;
	}
	return NEVER;
}

/* An address handle to one's own address proves that the entry can be used. */
static bool usable(struct vb_device *dev, const struct ibv_gid_entry *e)
{
	struct ibv_ah_attr attr = {.is_global = 1,
				   .port_num = dev->port,
				   .grh = {.dgid = e->gid, .sgid_index = (uint8_t)e->gid_index, .hop_limit = 255}};
	struct ibv_pd *pd = vb_lib.alloc_pd(dev->ctx);
	struct ibv_ah *ah = pd ? vb_lib.create_ah(pd, &attr) : NULL;

	if (ah)
		vb_lib.destroy_ah(ah);
	if (pd)
		vb_lib.dealloc_pd(pd);
	return ah != NULL;
}

static int refuse(const struct vb_device *dev, const struct ibv_gid_entry *table, ssize_t n, int wanted)
{
	char has[256] = "none", address[INET6_ADDRSTRLEN];
	size_t used = 0;

	for (ssize_t i = 0; i < n && used + sizeof address + 16 < sizeof has; i++) {
		if (table[i].port_num != dev->port)
			continue;
		inet_ntop(AF_INET6, table[i].gid.raw, address, sizeof address);
		used += (size_t)snprintf(has + used, sizeof has - used, "%s%u %s", used ? ", " : "", table[i].gid_index, address);
	}
	if (wanted >= 0)
		return rwf_fail(EINVAL, "open ibv: port %u of %s has no usable GID at index %d; it has: %s", dev->port,
				dev->base.attr.name, wanted, has);
	return rwf_fail(EADDRNOTAVAIL, "open ibv: port %u of %s has no usable GID, give its interface an address; it has: %s",
			dev->port, dev->base.attr.name, has);
}

static void take(struct vb_device *dev, const struct ibv_gid_entry *e, uint16_t lid)
{
	dev->addr.gid = e->gid;
	dev->addr.gid_index = (uint8_t)e->gid_index;
	dev->addr.link = e->gid_type == IBV_GID_TYPE_IB        ? RWF_IBV_IB
			 : e->gid_type == IBV_GID_TYPE_ROCE_V2 ? RWF_IBV_ROCE_V2
							       : RWF_IBV_ROCE_V1;
	dev->addr.lid = e->gid_type == IBV_GID_TYPE_IB ? lid : 0;
}

/* As in verbs.h. Every driver of the library's version has the call. */
int vb_query_port(struct vb_device *dev, uint8_t port, struct ibv_port_attr *attr)
{
	struct verbs_context *v = verbs_get_ctx_op(dev->ctx, query_port);

	memset(attr, 0, sizeof *attr);
	return v ? v->query_port(dev->ctx, port, attr, sizeof *attr) : EOPNOTSUPP;
}

int vb_choose_address(struct vb_device *dev, const struct ibv_port_attr *port)
{
	int wanted = dev->gid_option;
	size_t room = port->gid_tbl_len > 0 ? (size_t)port->gid_tbl_len : 1;
	struct ibv_gid_entry *table = calloc(room, sizeof *table);
	const struct ibv_gid_entry *best = NULL;
	ssize_t n;
	int rc = 0;

	if (!table)
		return rwf_fail(ENOMEM, "open ibv: no memory for %zu GIDs", room);
	n = vb_lib.query_gid_table(dev->ctx, table, room, 0, sizeof *table);
	for (ssize_t i = 0; i < n; i++) {
		const struct ibv_gid_entry *e = &table[i];

		if (e->port_num != dev->port || e->gid_index > UINT8_MAX || (wanted >= 0 && e->gid_index != (uint32_t)wanted))
			continue;
		if ((!best || rank(e) < rank(best)) && rank(e) != NEVER && usable(dev, e))
			best = e;
	}
	if (best)
		take(dev, best, port->lid);
	else
		rc = refuse(dev, table, n, wanted);
	free(table);
	return rc;
}

#endif
