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
	struct rwf_device_attr attr = {.provider = "sim",
				       .max_mr_size = UINT64_MAX,
				       .max_qp = 4096,
				       .max_qp_wr = 16384,
				       .max_cq = 1 << 16,
				       .max_cqe = 1 << 20,
				       .max_mr = 4096,
				       .max_inline = 4096};
	struct sim_device *dev;

	if (rc)
		return rc;
	if (link && (by_reference || copies_at_post || maps))
		return rwf_fail(EINVAL, "open sim: a device with link=1 has none of by_reference=1, copies_at_post=1 and maps=1");
	snprintf(attr.name, sizeof attr.name, "%s", *name ? name : "sim0");
	attr.flags = RWF_DEV_ANY_MEMORY | (by_reference ? RWF_DEV_BY_REFERENCE : 0) |
		     (copies_at_post ? RWF_DEV_COPIES_AT_POST : 0) | (maps ? RWF_DEV_MAPS : 0) | (link ? RWF_DEV_LINK : 0);
	dev = calloc(1, sizeof *dev);
	if (!dev)
		return rwf_fail(ENOMEM, "open sim: no memory for a device");
	rc = rwb_device_make(&dev->base, &rwf_sim_ops, &attr);
	if (!rc && !(dev->world = sim_world_join(world)))
		rc = -ENODEV;
	if (rc) {
		rwb_device_free(&dev->base);
		return rc;
	}
	sim_lock(dev->world);
	dev->id = ++dev->world->last_device;
	LIST_INSERT_HEAD(&dev->world->devices, dev, entry);
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

	sim_lock(w);
	LIST_REMOVE(dev, entry);
	sim_unlock(w);
	rwb_device_free(&dev->base);
	rwf_sim_free(w);
	return 0;
}

const struct rwf_ops rwf_sim_ops = {.name = "sim",
				    .nics = 1,
				    .open = sim_open,
				    .list = sim_list,
				    .close = sim_close,
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
