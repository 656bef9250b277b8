/* libibverbs behind dlopen: a binary built once runs with and without it. */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <dlfcn.h>
#include <errno.h>

struct vb_lib vb_lib;

static bool find_symbols(void *handle)
{
#define VB_FIND(name)                                                                                                              \
	if (!(*(void **)&vb_lib.name = dlsym(handle, "ibv_" #name)))                                                               \
		return false;
	VB_SYMBOLS(VB_FIND)
#undef VB_FIND
	return (*(void **)&vb_lib.query_gid_table = dlsym(handle, "_ibv_query_gid_table")) != NULL;
}

/* Calls ibv_fork_init, before any other call: a fork must not copy registered memory under the hardware. */
static bool init_fork(void *handle)
{
	__typeof__(ibv_fork_init) *fork_init;

	*(void **)&fork_init = dlsym(handle, "ibv_fork_init");
	return fork_init && fork_init() == 0;
}

static int load(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);

	if (!handle)
		return rwf_fail(ELIBACC, "libibverbs cannot be loaded: %s: apt-get install libibverbs1 ibverbs-providers",
				dlerror());
	if (!find_symbols(handle) || !init_fork(handle)) {
		dlclose(handle);
		return rwf_fail(ELIBBAD, "libibverbs.so.1 lacks a call or cannot be initialised: install rdma-core 34 or newer");
	}
	return 0;
}

int vb_load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool loaded;
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (!loaded)
		rc = load();
	loaded = !rc;
	pthread_mutex_unlock(&lock);
	return rc;
}

#endif
