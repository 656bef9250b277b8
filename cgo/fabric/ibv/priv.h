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
#include <sys/queue.h>

/*
 * The functions called through dlsym. Posting, polling and arming are not among them, because verbs.h inlines them to calls through
 * the device's own table.
 */
/* clang-format off */
#define VB_SYMBOLS(X) \
	X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) X(close_device) X(query_device) \
	X(port_state_str) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(dereg_mr) X(create_ah) X(destroy_ah) \
	X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(destroy_cq) X(get_cq_event) X(ack_cq_events) \
	X(create_qp) X(modify_qp) X(query_qp) X(destroy_qp) X(get_async_event) X(ack_async_event)
/* clang-format on */

struct vb_lib {
#define VB_FIELD(name) __typeof__(ibv_##name) *name;
	VB_SYMBOLS(VB_FIELD)
#undef VB_FIELD
	__typeof__(_ibv_query_gid_table) *query_gid_table;
};

/* The library, after vb_load, which loads it on first use. */
extern struct vb_lib vb_lib;
int vb_load(void);

/* The slot of a queue pair in its device's table is part of the work request ids it gives the hardware. */
enum { VB_MAX_QP = 1 << 16 };

struct vb_qp;

/* The address of a device. A link that goes down may lose its GIDs and return with others. */
struct vb_address {
	union ibv_gid gid;
	enum rwf_ibv_link link;
	uint16_t lid;
	uint8_t gid_index;
};

struct vb_device {
	rwf_device base;
	struct ibv_context *ctx;
	uint8_t port;
	enum ibv_mtu mtu;
	int gid_option; /* -1 if chosen */
	int tc, sl, retry;
	int timeout; /* 0 if computed */
	int arrival; /* 0 if the receive PSN does not show a peer's arrival */
	int kick_fd; /* wakes the thread that waits for events */

	pthread_mutex_t lock; /* guards the fields below */
	struct vb_address addr;
	bool addr_stale; /* addresses may have changed since, so choose again */
	uint32_t next_slot;
	LIST_HEAD(, vb_qp) waiting; /* passive queue pairs whose peer has not arrived */
	struct vb_qp **qps;         /* VB_MAX_QP; an entry is read by the queue pair's owner without the lock */
};

struct vb_mr {
	LIST_ENTRY(vb_mr) all;
	struct ibv_mr *mr;
};

struct vb_pd {
	rwf_pd base;
	struct ibv_pd *pd;
	pthread_mutex_t lock; /* guards mrs */
	LIST_HEAD(, vb_mr) mrs;
};

struct vb_cq {
	rwf_cq base;
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	_Atomic bool overran;
	uint32_t cqe, reserved; /* entries, and the number that its queue pairs may need at once */
	uint32_t unacked;
	struct rwb_ring early; /* completions taken from the hardware before their poll */
};

/* One direction's work requests: the wanted number, even if the hardware rounds it up. */
struct vb_queue {
	uint32_t head, tail; /* posted, completed */
	uint32_t size, mask;
	uint64_t *wr_ids;
};

struct vb_qp {
	rwf_qp base;
	struct vb_device *dev;
	struct ibv_qp *qp;
	struct vb_cq *cq;
	struct vb_queue sq, rq;
	struct vb_address addr; /* of the device when the queue pair was made */
	uint32_t slot, psn, peer_psn;
	bool connected;

	/* while the queue pair waits for its peer; guarded by the device's lock */
	bool waiting;
	LIST_ENTRY(vb_qp) waits;
	uint64_t deadline_ns;
};

RWB_CALLS(RWB_PROTOTYPE, vb_)

/* Brings the hardware's queue pair to another state, named for the error. */
int vb_modify(struct vb_qp *, struct ibv_qp_attr *, int mask, const char *to);
int vb_to_init(struct vb_qp *);
int vb_to_error(struct vb_qp *);
/*
 * Establishes a queue pair whose peer arrived. The owner and the thread that waits for events may both call it, and the queue pair
 * may have failed meanwhile.
 */
static inline void vb_establish(struct vb_qp *qp)
{
	int rtr = RWF_QPS_RTR;

	atomic_compare_exchange_strong(&qp->base.state, &rtr, RWF_QPS_RTS);
}

/* Takes the queue pair off the list of queue pairs that wait for their peer. vb_unlink_waiting needs the device's lock. */
void vb_stop_waiting(struct vb_qp *);
void vb_unlink_waiting(struct vb_qp *);

int vb_query_port(struct vb_device *, uint8_t port, struct ibv_port_attr *);
/* Chooses the device's address anew. Needs the lock after other threads know of the device. */
int vb_choose_address(struct vb_device *, const struct ibv_port_attr *);

/*
 * Takes all completions in the hardware's queues of qp. Completions of other queue pairs wait in early for polls. Those of qp free
 * their requests, and the last status of its send number seq goes to status.
 */
void vb_set_aside(struct vb_qp *qp, uint32_t seq, int *status);

/* Posts receives to the hardware, from number seq on. Returns the number of posted receives. */
int vb_hand_recvs(struct vb_qp *, uint32_t seq, int n);
uint64_t vb_wr_id(const struct vb_qp *, bool recv, uint32_t seq);

#endif
