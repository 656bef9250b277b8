/* The interface of a provider: one function for each call of fabric.h, and the common head of each object. */
#ifndef RW_PROVIDER_H
#define RW_PROVIDER_H

#include "fabric.h"

#include <stdarg.h>
#include <stdbool.h>

/* The calls that a provider defines in files of its own, each as X(prefix, name, parameters). They return int. */
/* clang-format off */
#define RWB_CALLS(X, prefix) RWB_COMMON_CALLS(X, prefix) RWB_OWN_CALLS(X, prefix)
/* The calls that software providers have in common (soft.h), and the calls that each has of its own. */
#define RWB_COMMON_CALLS(X, prefix) \
	X(prefix, alloc_pd, (rwf_device *dev, rwf_pd **out)) \
	X(prefix, dealloc_pd, (rwf_pd *pd)) \
	X(prefix, destroy_cq, (rwf_cq *cq)) \
	X(prefix, get_async_event, (rwf_device *dev, int timeout_ms, struct rwf_async_event *out))
#define RWB_OWN_CALLS(X, prefix) \
	X(prefix, reg_mr, (rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)) \
	X(prefix, dereg_mr, (rwf_pd *pd, uint32_t lkey)) \
	X(prefix, create_cq, (rwf_device *dev, uint32_t cqe, rwf_cq **out)) \
	X(prefix, poll_cq, (rwf_cq *cq, struct rwf_wc *wc, int n)) \
	X(prefix, req_notify_cq, (rwf_cq *cq, uint32_t count)) \
	X(prefix, wait_cq, (rwf_cq *cq, int64_t timeout_us)) \
	X(prefix, create_qp, (rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)) \
	X(prefix, destroy_qp, (rwf_qp *qp)) \
	X(prefix, qp_endpoint, (rwf_qp *qp, void *buf)) \
	X(prefix, connect_qp, (rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr)) \
	X(prefix, fail_qp, (rwf_qp *qp)) \
	X(prefix, post_send, (rwf_qp *qp, const struct rwf_send_wr *wr, int n)) \
	X(prefix, post_recv, (rwf_qp *qp, uint64_t wr_id, int n))
/* clang-format on */
#define RWB_FIELD(prefix, name, parameters) int(*name) parameters;
/* With RWB_CALLS these declare a provider's functions, and list them in its struct rwf_ops. */
#define RWB_PROTOTYPE(prefix, name, parameters) int prefix##name parameters;
#define RWB_ENTRY(prefix, name, parameters) .name = prefix##name,

struct rwf_ops {
	const char *name;
	int nics; /* rwf_has_nics */
	int (*open)(const char *device, const char *options, rwf_device **out);
	int (*list)(char *buf, size_t cap);
	int (*close)(rwf_device *);
	RWB_CALLS(RWB_FIELD, )
	void *(*map)(rwf_qp *, uint32_t, uint64_t, uint32_t); /* NULL without RWF_DEV_MAPS */
	void (*rest_cq)(rwf_cq *);                            /* NULL if arrivals are acknowledged without the owner's polls */
};

/* A provider's object starts with the matching head. The rest is the provider's own. fabric.c counts the users. */
struct rwf_device {
	const struct rwf_ops *ops;
	struct rwf_device_attr attr;
	_Atomic uint32_t users; /* protection domains and completion queues */
};
struct rwf_pd {
	const struct rwf_ops *ops;
	rwf_device *dev;
	_Atomic uint32_t users; /* queue pairs and memory regions */
};
struct rwf_cq {
	const struct rwf_ops *ops;
	rwf_device *dev;
	_Atomic uint32_t users; /* queue pairs */
	int wake_fd;
	_Atomic bool woken; /* the next wait returns; ibv sees wake_fd alone */
};
struct rwf_qp {
	const struct rwf_ops *ops;
	rwf_pd *pd;
	rwf_cq *cq;
	uint32_t num, peer;
	_Atomic int state; /* enum rwf_qp_state */
};

/* Reports whether a region's access is for this queue pair's peer. */
static inline int rwb_for_peer(const rwf_qp *qp, int access)
{
	uint32_t peer = (uint32_t)access >> RWF_ACCESS_PEER_SHIFT;

	return !peer || peer == qp->peer;
}

/*
 * Adds a provider behind the others. Returns 0, or -ENOSPC. Rigs call it before anything else runs. The product's own providers are
 * in the table of fabric.c.
 */
int rwf_provide(const struct rwf_ops *ops);

extern const struct rwf_ops rwf_ibv_ops, rwf_shm_ops, rwf_tcp_ops;

/* Checks a request against the queue pair's limit of inline bytes and its device's flags. Returns 0 or -EINVAL. */
int rwb_check_send(const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t max_inline, uint32_t device_flags);

enum { RWB_OPTION_TEXT = 96 };
/* An option that a provider knows: text, one of two words, which is 0 or 1, or else a number from low to high. */
struct rwb_option {
	const char *key;
	int *number, low, high;
	const char *words[2];
	char *text; /* RWB_OPTION_TEXT bytes */
};

#define RWB_NUMBER(k, out, least, most)                                                                                            \
	{                                                                                                                          \
		.key = (k), .number = (out), .low = (least), .high = (most)                                                        \
	}

/* Reads "k=v,k=v" or "k=v, k=v". Leaves alone what is absent. Returns 0, or -EINVAL if a key is unknown or a value is invalid. */
int rwb_read_options(const char *provider, const char *options, const struct rwb_option *known, size_t n);
#define RWB_READ_OPTIONS(provider, options, known) rwb_read_options(provider, options, known, sizeof(known) / sizeof *(known))

#endif
