/* Provider shm: the device. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int shm_list(char *buf, size_t cap)
{
	snprintf(buf, cap, "shm0\n");
	return 1;
}

static int shm_open_device(const char *device, const char *options, rwf_device **out)
{
	static const struct rwf_device_attr attr = {.provider = "shm",
						    .name = "shm0",
						    .max_mr_size = SHM_MAX_MR_SIZE,
						    .max_qp = 1 << 16,
						    .max_qp_wr = SHM_MAX_QP_WR,
						    .max_cq = 1 << 16,
						    .max_cqe = 1 << 20,
						    .max_mr = SHM_MR_SLOTS,
						    .max_inline = 4 << 20,
						    .flags = SHM_DEVICE_FLAGS};
	struct shm_device *d;
	int any_user = 0;
	const struct rwb_option known[] = {{"users", &any_user, .words = {"same", "any"}}};
	int rc = RWB_READ_OPTIONS("shm", options, known);

	if (rc)
		return rc;
	if (*device && strcmp(device, "shm0") != 0)
		return rwf_fail(ENODEV, "provider shm has no device \"%s\": its only one is shm0", device);
	d = calloc(1, sizeof *d);
	if (!d)
		return rwf_fail(ENOMEM, "open shm0: out of memory");
	d->any_user = any_user;
	rc = rwb_door_make(&d->door, &rwf_shm_ops, &attr, &shm_door_ops);
	if (!rc)
		rc = shm_random(d->name, sizeof d->name);
	if (!rc) {
		d->door.listen_fd = shm_listen(d->name);
		rc = d->door.listen_fd < 0 ? d->door.listen_fd : 0;
	}
	if (rc) {
		rwb_door_free(&d->door);
		return rc;
	}
	*out = &d->door.device.head;
	return 0;
}

static int shm_close_device(rwf_device *dev)
{
	struct shm_device *d = shm_dev(dev);

	shm_shut_door(d);
	rwb_door_free(&d->door);
	return 0;
}

const struct rwf_ops rwf_shm_ops = {.name = "shm",
				    .open = shm_open_device,
				    .list = shm_list,
				    .close = shm_close_device,
				    .map = shm_map,
				    RWB_COMMON_CALLS(RWB_ENTRY, rwb_) RWB_OWN_CALLS(RWB_ENTRY, shm_)};
