/* Provider sim: its devices and the operations table. sim.h documents its options. */
#include "world.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int sim_open(const char *name, const char *options, rwf_device **out)
{
	int world = 0, by_reference = 0, copies_at_post = 0, maps = 0, link = 0;
	const struct rwb_option known[] = {
		RWB_NUMBER("world", &world, 1, INT_MAX),
		RWB_NUMBER("by_reference", &by_reference, 0, 1),
		RWB_NUMBER("copies_at_post", &copies_at_post, 0, 1),
		RWB_NUMBER("maps", &maps, 0, 1),
		RWB_NUMBER("link", &link, 0, 1),
	};
	int rc = RWB_READ_OPTIONS("sim", options, known);
	struct sim_device *dev;

	if (rc)
		return rc;
	if (link && (by_reference || copies_at_post || maps))
		return rwf_fail(EINVAL, "open sim: a device with link=1 has none of by_reference=1, copies_at_post=1 and maps=1");
	dev = calloc(1, sizeof *dev);
	if (!dev)
		return rwf_fail(ENOMEM, "open sim: no memory for a device");
	rc = rwb_device_make(&dev->base, &rwf_sim_ops, SIM_MAX_MR);
	if (!rc && !(dev->world = sim_world_join(world)))
		rc = -ENODEV;
	if (rc) {
		rwb_device_free(&dev->base);
		return rc;
	}
	snprintf(dev->name, sizeof dev->name, "%s", *name ? name : "sim0");
	dev->flags = RWF_DEV_ANY_MEMORY | (by_reference ? RWF_DEV_BY_REFERENCE : 0) |
		     (copies_at_post ? RWF_DEV_COPIES_AT_POST : 0) | (maps ? RWF_DEV_MAPS : 0) | (link ? RWF_DEV_LINK : 0);
	dev->up_at_ns = SIM_NEVER;
	sim_lock(dev->world);
	dev->id = ++dev->world->last_device;
	dev->next = dev->world->devices;
	dev->world->devices = dev;
	sim_unlock(dev->world);
	*out = &dev->base.head;
	return 0;
}

/* Any name is a device, and none is there unless it is asked for. */
static int sim_list(char *buf, size_t cap)
{
	(void)buf, (void)cap;
	return 0;
}

static int sim_close(rwf_device *base)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct rwf_sim *w = dev->world;
	int rc = rwb_device_busy(&dev->base, dev->name);

	if (rc)
		return rc;
	sim_lock(w);
	for (struct sim_device **d = &w->devices; *d; d = &(*d)->next)
		if (*d == dev) {
			*d = dev->next;
			break;
		}
	sim_unlock(w);
	rwb_device_free(&dev->base);
	sim_world_leave(w);
	return 0;
}

static int sim_query(rwf_device *base, struct rwf_device_attr *out)
{
	struct sim_device *dev = (struct sim_device *)base;

	snprintf(out->provider, sizeof out->provider, "sim");
	memcpy(out->name, dev->name, sizeof out->name);
	out->max_mr_size = UINT64_MAX;
	out->max_qp = SIM_MAX_QP;
	out->max_qp_wr = SIM_MAX_WR;
	out->max_cq = 1 << 16;
	out->max_cqe = SIM_MAX_CQE;
	out->max_mr = SIM_MAX_MR;
	out->max_inline = SIM_MAX_INLINE;
	out->flags = dev->flags;
	return 0;
}

const struct rwf_ops rwf_sim_ops = {.name = "sim",
				    .nics = 1,
				    .open = sim_open,
				    .list = sim_list,
				    .close = sim_close,
				    .query = sim_query,
				    .map = sim_map,
				    .alloc_pd = rwb_alloc_pd,
				    .dealloc_pd = rwb_dealloc_pd,
				    .destroy_cq = rwb_destroy_cq,
				    .get_async_event = sim_get_async_event,
				    RWB_OWN_CALLS(RWB_ENTRY, sim_)};

int rwf_sim_provide(void)
{
	return rwf_provide(&rwf_sim_ops);
}
