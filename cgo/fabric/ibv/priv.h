/* Shared by the files of provider ibv. Names start with vb_, because libibverbs' own start with ibv_. */
#ifndef RW_FABRIC_IBV_PRIV_H
#define RW_FABRIC_IBV_PRIV_H

#include "ibv.h"
#include "../base/provider.h"
#include "../base/queue.h"
#include "../base/wait.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/*
 * What is called through dlsym. Posting, polling and arming are not here: verbs.h inlines them to calls through the device's
 * own table. ibv_query_port is the old entry point, for drivers without the extended one.
 */
/* clang-format off */
#define VB_SYMBOLS(X) \
	X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) X(close_device) X(query_device) \
	X(query_port) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(dereg_mr) X(create_ah) X(destroy_ah) \
	X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(destroy_cq) X(get_cq_event) X(ack_cq_events) \
	X(create_qp) X(modify_qp) X(query_qp) X(destroy_qp) X(get_async_event) X(ack_async_event)
/* clang-format on */

struct vb_lib {
#define VB_FIELD(name) __typeof__(ibv_##name) *name;
	VB_SYMBOLS(VB_FIELD)
#undef VB_FIELD
	__typeof__(_ibv_query_gid_table) *query_gid_table;
};

/* The library, loaded on first use. */
int vb_load(const struct vb_lib **out);

/* The slot of a queue pair in its device's table is part of the work request ids it gives the hardware. */
enum { VB_MAX_QP = 1 << 16 };

struct vb_qp;

/* Where a device is reached. A link that goes down may take its GIDs along and return with others. */
struct vb_address {
	union ibv_gid gid;
	enum rwf_ibv_link link;
	uint16_t lid;
	uint8_t gid_index;
};

struct vb_device {
	rwf_device base;
	const struct vb_lib *lib;
	struct ibv_context *ctx;
	struct rwf_device_attr attr;
	uint8_t port;
	enum ibv_mtu mtu;
	int gid_option;                                 /* -1: chosen */
	int tc, sl, timeout, retry, rnr, min_rnr_timer; /* -1: computed */
	bool arrival;
	int kick_fd; /* wakes the thread that waits for events */

	pthread_mutex_t lock; /* guards what follows */
	struct vb_address addr;
	bool addr_stale; /* addresses may have changed since: choose again */
	uint32_t pds, cqs, next_slot;
	struct vb_qp *waiting; /* passive queue pairs whose peer has not arrived */
	struct vb_qp **qps;    /* VB_MAX_QP; an entry is read by the queue pair's owner without the lock */
};

struct vb_mr {
	struct vb_mr *next;
	struct ibv_mr *mr;
};

struct vb_pd {
	rwf_pd base;
	struct ibv_pd *pd;
	pthread_mutex_t lock; /* guards what follows */
	struct vb_mr *mrs;
	uint32_t qps;
};

struct vb_cq {
	rwf_cq base;
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	int wake_fd;
	_Atomic bool overran;
	uint32_t cqe, reserved; /* entries, and how many its queue pairs may need at once */
	uint32_t users, unacked;
	uint32_t held_head, held_count; /* ring of completions taken early, cqe long */
	struct rwf_wc *held;
};

/* One direction's work requests: as many as asked for, whatever the hardware rounds that to. */
struct vb_queue {
	uint32_t head, tail; /* posted, completed */
	uint32_t size, mask;
	uint64_t *wr_ids;
};

struct vb_qp {
	rwf_qp base;
	struct vb_device *dev;
	struct ibv_qp *qp;
	struct vb_cq *send_cq, *recv_cq;
	struct vb_queue sq, rq;
	struct vb_address addr; /* of the device when this was made */
	uint32_t slot, max_inline, psn, peer_psn;
	struct rwf_ibv_stats stats;
	bool connected;

	/* while it waits for its peer; guarded by the device's lock */
	struct vb_qp *next_waiting;
	uint64_t deadline_ns;
};

/* Brings the hardware's queue pair to another state, named for the error. */
int vb_modify(struct vb_qp *, struct ibv_qp_attr *, int mask, const char *to);
int vb_to_init(struct vb_qp *);
int vb_to_error(struct vb_qp *);
void vb_establish(struct vb_qp *);
/* Takes the queue pair off the list of those that wait for their peer. vb_unlink_waiting needs the device's lock. */
void vb_stop_waiting(struct vb_qp *);
void vb_unlink_waiting(struct vb_qp *);

int vb_open(const char *device, const char *options, rwf_device **out);
int vb_list(char *buf, size_t cap);
int vb_close(rwf_device *);
int vb_query(rwf_device *, struct rwf_device_attr *);
int vb_query_port(struct vb_device *, uint8_t port, struct ibv_port_attr *);
/* Chooses the device's address anew. Needs the lock once others know of the device. */
int vb_choose_address(struct vb_device *, const struct ibv_port_attr *);

int vb_alloc_pd(rwf_device *, rwf_pd **);
int vb_dealloc_pd(rwf_pd *);
int vb_reg_mr(rwf_pd *, void *, size_t, int, int, uint64_t, struct rwf_mr *);
int vb_dereg_mr(rwf_pd *, uint32_t);

int vb_create_cq(rwf_device *, uint32_t, rwf_cq **);
int vb_destroy_cq(rwf_cq *);
int vb_poll_cq(rwf_cq *, struct rwf_wc *, int);
int vb_req_notify_cq(rwf_cq *, uint32_t);
int vb_wait_cq(rwf_cq *, int64_t);
int vb_wake_cq(rwf_cq *);
/*
 * Takes all that lies in the hardware's queue. Holds completions of other queue pairs for later polls. Those of qp free
 * what they occupy, and the last status of its send number seq goes to *status.
 */
void vb_set_aside(struct vb_cq *, struct vb_qp *qp, uint32_t seq, int *status);

int vb_create_qp(rwf_pd *, const struct rwf_qp_init *, rwf_qp **);
int vb_destroy_qp(rwf_qp *);
int vb_fail_qp(rwf_qp *);
int vb_post_send(rwf_qp *, const struct rwf_send_wr *, int);
int vb_post_recv(rwf_qp *, uint64_t, int);
/* Hands receives to the hardware, from number seq on. Returns how many it took. */
int vb_hand_recvs(struct vb_qp *, uint32_t seq, int n);
uint64_t vb_wr_id(const struct vb_qp *, bool recv, uint32_t seq);

int vb_qp_endpoint(rwf_qp *, void *, size_t);
int vb_connect_qp(rwf_qp *, const void *, size_t, const struct rwf_connect_attr *);
int vb_get_async_event(rwf_device *, int, struct rwf_async_event *);

#endif
