/* What a provider implements: one function for each call of fabric.h, and the common head of each object. */
#ifndef RW_PROVIDER_H
#define RW_PROVIDER_H

#include "fabric.h"

#include <stdarg.h>

struct rwf_ops {
	const char *name;
	int (*open)(const char *device, const char *options, rwf_device **out);
	int (*list)(char *buf, size_t cap);
	int (*close)(rwf_device *);
	int (*query)(rwf_device *, struct rwf_device_attr *);
	int (*alloc_pd)(rwf_device *, rwf_pd **);
	int (*dealloc_pd)(rwf_pd *);
	int (*reg_mr)(rwf_pd *, void *, size_t, int, int, uint64_t, struct rwf_mr *);
	int (*dereg_mr)(rwf_pd *, uint32_t);
	int (*create_cq)(rwf_device *, uint32_t, rwf_cq **);
	int (*destroy_cq)(rwf_cq *);
	int (*poll_cq)(rwf_cq *, struct rwf_wc *, int);
	int (*req_notify_cq)(rwf_cq *, uint32_t);
	int (*wait_cq)(rwf_cq *, int64_t);
	int (*wake_cq)(rwf_cq *);
	int (*create_qp)(rwf_pd *, const struct rwf_qp_init *, rwf_qp **);
	int (*destroy_qp)(rwf_qp *);
	int (*qp_endpoint)(rwf_qp *, void *, size_t);
	int (*connect_qp)(rwf_qp *, const void *, size_t, const struct rwf_connect_attr *);
	int (*fail_qp)(rwf_qp *);
	int (*post_send)(rwf_qp *, const struct rwf_send_wr *, int);
	int (*post_recv)(rwf_qp *, uint64_t, int);
	void *(*map)(rwf_qp *, uint32_t, uint64_t, uint32_t); /* NULL: no RWF_DEV_MAPS */
	int (*get_async_event)(rwf_device *, int, struct rwf_async_event *);
};

/* A provider's object starts with the matching head; the rest is its own. */
struct rwf_device {
	const struct rwf_ops *ops;
};
struct rwf_pd {
	const struct rwf_ops *ops;
	rwf_device *dev;
};
struct rwf_cq {
	const struct rwf_ops *ops;
	rwf_device *dev;
};
struct rwf_qp {
	const struct rwf_ops *ops;
	rwf_pd *pd;
	uint32_t num, peer;
	_Atomic int state; /* enum rwf_qp_state */
};

/* Reports whether a region's access is for this queue pair's peer. */
static inline int rwb_for_peer(const rwf_qp *qp, int access)
{
	uint32_t peer = (uint32_t)access >> RWF_ACCESS_PEER_SHIFT;

	return !peer || peer == qp->peer;
}

extern const struct rwf_ops rwf_ibv_ops, rwf_shm_ops, rwf_tcp_ops, rwf_sim_ops;

/* Checks a request against the queue pair's limit of inline bytes and its device's flags. Returns 0 or -EINVAL. */
int rwb_check_send(const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t max_inline, uint32_t device_flags);

/*
 * Copies the value of key in "k=v,k=v" into out (cap bytes) and returns 1, or returns 0 where it is absent.
 * rwb_option_check returns -EINVAL, with the key in the error, where options hold one that is not in the NULL-ended list.
 */
int rwb_option(const char *options, const char *key, char *out, size_t cap);
int rwb_option_check(const char *provider, const char *options, const char *const *known);

#endif
