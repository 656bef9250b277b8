/* Provider ibv's table, and libibverbs behind dlopen: a binary built once runs with and without it. */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <dlfcn.h>
#include <errno.h>

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static bool find_symbols(void *handle, struct vb_lib *lib)
{
#define VB_FIND(name) \
	if (!(*(void **)&lib->name = dlsym(handle, "ibv_" #name))) \
		return false;
	VB_SYMBOLS(VB_FIND)
#undef VB_FIND
	return (*(void **)&lib->query_gid_table = dlsym(handle, "_ibv_query_gid_table")) != NULL;
}

/* Before any other call, ibv_fork_init: what is registered must not be copied under the hardware by a fork. */
static bool init_fork(void *handle)
{
	__typeof__(ibv_fork_init) *fork_init;

	*(void **)&fork_init = dlsym(handle, "ibv_fork_init");
	return fork_init && fork_init() == 0;
}

static int load(const struct vb_lib **out)
{
	static struct vb_lib lib;
	static bool loaded;
	void *handle;

	*out = &lib;
	if (loaded)
		return 0;
	handle = dlopen("libibverbs.so.1", RTLD_NOW);
	if (!handle)
		return rwf_fail(ELIBACC, "libibverbs cannot be loaded: %s: apt-get install libibverbs1 ibverbs-providers", dlerror());
	if (!find_symbols(handle, &lib) || !init_fork(handle)) {
		dlclose(handle);
		return rwf_fail(ELIBBAD, "libibverbs.so.1 lacks a call or cannot be initialised: install rdma-core 34 or newer");
	}
	loaded = true;
	return 0;
}

int vb_load(const struct vb_lib **out)
{
	int rc;

	pthread_mutex_lock(&load_lock);
	rc = load(out);
	pthread_mutex_unlock(&load_lock);
	return rc;
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
