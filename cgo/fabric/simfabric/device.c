/* Provider sim: its devices and the operations table. sim.h documents its options. */
#include "world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int option_number(const char *options, const char *key, uint64_t *out)
{
	char text[32], *end;

	if (!rwb_option(options, key, text, sizeof text))
		return 0;
	*out = strtoull(text, &end, 0);
	if (end == text || *end)
		return rwf_fail(EINVAL, "open sim: option %s=%s is not a number", key, text);
	return 1;
}

static int sim_open(const char *name, const char *options, rwf_device **out)
{
	static const char known[] = "world, seed, auto, by_reference, copies_at_post, maps, link";
	uint64_t world = 0, seed = 1, automatic = 0, by_reference = 0, copies_at_post = 0, maps = 0, link = 0;
	int rc = rwb_option_check("sim", options, known), given = 0;
	struct sim_device *dev;

	if (rc || (given = rc = option_number(options, "world", &world)) < 0 || (rc = option_number(options, "seed", &seed)) < 0 ||
	    (rc = option_number(options, "auto", &automatic)) < 0 ||
	    (rc = option_number(options, "by_reference", &by_reference)) < 0 || (rc = option_number(options, "maps", &maps)) < 0 ||
	    (rc = option_number(options, "copies_at_post", &copies_at_post)) < 0 ||
	    (rc = option_number(options, "link", &link)) < 0)
		return rc;
	if (link && (by_reference || copies_at_post || maps))
		return rwf_fail(EINVAL, "open sim: a device with link=1 has none of by_reference=1, copies_at_post=1 and maps=1");
	if (given && world == 0)
		return rwf_fail(EINVAL, "open sim: worlds are numbered from 1; leave world= out for the process's own");
	dev = calloc(1, sizeof *dev);
	if (!dev)
		return rwf_fail(ENOMEM, "open sim: no memory for a device");
	dev->world = sim_world_join(world > INT32_MAX ? -1 : (int)world, seed, automatic || !given);
	if (!dev->world) {
		free(dev);
		return -ENODEV;
	}
	dev->base.ops = &rwf_sim_ops;
	snprintf(dev->name, sizeof dev->name, "%s", *name ? name : "sim0");
	dev->flags = RWF_DEV_ANY_MEMORY | (by_reference ? RWF_DEV_BY_REFERENCE : 0) |
		     (copies_at_post ? RWF_DEV_COPIES_AT_POST : 0) | (maps ? RWF_DEV_MAPS : 0) | (link ? RWF_DEV_LINK : 0);
	dev->up_at_ns = SIM_NEVER;
	sim_lock(dev->world);
	dev->id = ++dev->world->last_device;
	dev->next = dev->world->devices;
	dev->world->devices = dev;
	sim_unlock(dev->world);
	*out = &dev->base;
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
	if (dev->pds || dev->cqs) {
		int rc = rwf_fail(EBUSY, "close device %s: %u protection domains and %u completion queues are open", dev->name,
				  dev->pds, dev->cqs);

		sim_unlock(w);
		return rc;
	}
	for (struct sim_device **d = &w->devices; *d; d = &(*d)->next)
		if (*d == dev) {
			*d = dev->next;
			break;
		}
	sim_unlock(w);
	free(dev->mrs);
	free(dev);
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
	out->max_cq = SIM_MAX_CQ;
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
				    RWB_CALLS(RWB_ENTRY, sim_)};

int rwf_sim_provide(void)
{
	return rwf_provide(&rwf_sim_ops);
}
