/* Provider shm: the device and its protection domains. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int shm_list(char *buf, size_t cap)
{
	snprintf(buf, cap, "shm0\n");
	return 1;
}

static int parse_options(const char *options, bool *any_user, uint64_t *max_mapped)
{
	char v[32], *end;

	if (rwb_option(options, "users", v, sizeof v)) {
		*any_user = strcmp(v, "any") == 0;
		if (!*any_user && strcmp(v, "same") != 0)
			return rwf_fail(EINVAL, "open shm0: users=%s: use same or any", v);
	}
	*max_mapped = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4 * 3;
	if (rwb_option(options, "mapped", v, sizeof v)) {
		*max_mapped = strtoull(v, &end, 10);
		if (!*max_mapped || *end || *v == '-')
			return rwf_fail(EINVAL, "open shm0: mapped=%s: use a number of bytes", v);
	}
	return 0;
}

static int shm_open_device(const char *device, const char *options, rwf_device **out)
{
	static const char *const known[] = {"users", "mapped", NULL};
	struct shm_device *d;
	bool any_user = false;
	uint64_t max_mapped = 0;
	int rc = rwb_option_check("shm", options, known);

	if (!rc)
		rc = parse_options(options, &any_user, &max_mapped);
	if (rc)
		return rc;
	if (*device && strcmp(device, "shm0") != 0)
		return rwf_fail(ENODEV, "provider shm has no device \"%s\": its only one is shm0", device);
	d = calloc(1, sizeof *d);
	if (!d)
		return rwf_fail(ENOMEM, "open shm0: out of memory");
	d->base.ops = &rwf_shm_ops;
	d->any_user = any_user;
	d->max_mapped = max_mapped;
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->accept_lock, NULL);
	d->listener = -1;
	d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = d->event_fd < 0 ? rwf_fail(errno, "open shm0: eventfd: %s", strerror(errno)) : 0;
	if (!rc)
		rc = shm_random(d->name, sizeof d->name);
	if (!rc)
		rc = shm_random(&d->next_qp_num, sizeof d->next_qp_num);
	if (!rc) {
		d->listener = shm_listen(d->name);
		rc = d->listener < 0 ? d->listener : 0;
	}
	if (rc) {
		if (d->event_fd >= 0)
			close(d->event_fd);
		free(d);
		return rc;
	}
	*out = &d->base;
	return 0;
}

static int shm_close_device(rwf_device *dev)
{
	struct shm_device *d = shm_dev(dev);

	if (d->pds || d->cqs)
		return rwf_fail(EBUSY, "close shm0: %u protection domains and %s are open", d->pds,
				d->cqs ? "completion queues" : "no completion queues");
	shm_drop_half_open(d);
	close(d->listener);
	close(d->event_fd);
	pthread_mutex_destroy(&d->lock);
	pthread_mutex_destroy(&d->accept_lock);
	free(d);
	return 0;
}

static int shm_query(rwf_device *dev, struct rwf_device_attr *out)
{
	(void)dev;
	*out = (struct rwf_device_attr){
		.provider = "shm",
		.name = "shm0",
		.max_mr_size = SHM_MAX_MR_SIZE,
		.max_qp = 1 << 16,
		.max_qp_wr = SHM_MAX_QP_WR,
		.max_cq = 1 << 16,
		.max_cqe = SHM_MAX_CQE,
		.max_mr = SHM_MR_SLOTS,
		.max_inline = SHM_MAX_INLINE,
		.flags = SHM_DEVICE_FLAGS,
	};
	return 0;
}

static int shm_alloc_pd(rwf_device *dev, rwf_pd **out)
{
	struct shm_device *d = shm_dev(dev);
	rwf_pd *pd = calloc(1, sizeof *pd);

	if (!pd)
		return rwf_fail(ENOMEM, "allocate protection domain: out of memory");
	*pd = (rwf_pd){dev->ops, dev};
	pthread_mutex_lock(&d->lock);
	d->pds++;
	pthread_mutex_unlock(&d->lock);
	*out = pd;
	return 0;
}

static int shm_dealloc_pd(rwf_pd *pd)
{
	struct shm_device *d = shm_dev(pd->dev);
	int qps = 0, mrs = 0;

	pthread_mutex_lock(&d->lock);
	for (struct shm_qp *q = d->qps; q; q = q->next)
		qps += q->base.pd == pd;
	for (int i = 0; i < SHM_MR_SLOTS; i++)
		mrs += d->mr[i].key && d->mr[i].pd == pd;
	if (!qps && !mrs)
		d->pds--;
	pthread_mutex_unlock(&d->lock);
	if (qps || mrs)
		return rwf_fail(EBUSY, "deallocate protection domain: %d queue pairs and %d regions use it", qps, mrs);
	free(pd);
	return 0;
}

const struct rwf_ops rwf_shm_ops = {
	.name = "shm",
	.open = shm_open_device,
	.list = shm_list,
	.close = shm_close_device,
	.query = shm_query,
	.alloc_pd = shm_alloc_pd,
	.dealloc_pd = shm_dealloc_pd,
	.reg_mr = shm_reg_mr,
	.dereg_mr = shm_dereg_mr,
	.create_cq = shm_create_cq,
	.destroy_cq = shm_destroy_cq,
	.poll_cq = shm_poll_cq,
	.req_notify_cq = shm_req_notify_cq,
	.wait_cq = shm_wait_cq,
	.wake_cq = shm_wake_cq,
	.create_qp = shm_create_qp,
	.destroy_qp = shm_destroy_qp,
	.qp_endpoint = shm_qp_endpoint,
	.connect_qp = shm_connect_qp,
	.fail_qp = shm_fail_qp,
	.post_send = shm_post_send,
	.post_recv = shm_post_recv,
	.map = shm_map,
	.get_async_event = shm_get_async_event,
};
