/* What software providers have in common: devices, protection domains, memory regions and completion queues. */
#ifndef RW_FABRIC_SOFT_H
#define RW_FABRIC_SOFT_H

#include "queue.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

/* A registered region. key is 0 while the slot is free, and is stored last. The rest changes under the device's lock. */
struct rwb_mr {
	_Atomic uint32_t key;
	uint32_t last_key;
	int access, fd; /* fd: the caller's memfd */
	uint64_t addr, length, offset;
	rwf_pd *pd;
};

struct rwb_device {
	rwf_device head;
	/* Of the lists and the regions. A provider uses it for more. */
	pthread_mutex_t lock;
	LIST_HEAD(, rwb_cq) cqs;
	LIST_HEAD(, rwb_qp) qps;
	struct rwb_mr *mrs; /* attr.max_mr of them, a power of two */
	uint32_t next_mr;
	uint32_t next_qp_num;
	int event_fd; /* wakes rwf_get_async_event */
};

struct rwb_cq {
	rwf_cq head;
	struct rwb_ring ring;
	bool overrun;
	int epoll_fd;
	LIST_ENTRY(rwb_cq) of_device;
};

struct rwb_qp {
	rwf_qp head;
	struct rwb_sends sends;
	uint64_t acked;           /* sends before it have their completion, if any */
	enum rwf_wc_status error; /* of the oldest of the others, after the queue pair failed */
	/* Receives before received were used, those before recv_posted are posted. Places before recv_freed are free again. */
	uint64_t *wr_ids;
	uint32_t recv_mask, recv_limit;
	uint64_t received, recv_freed;
	_Atomic uint64_t recv_posted;
	uint64_t deadline_ns;    /* passive: time at which it fails without its peer */
	_Atomic uint32_t events; /* 1 << enum rwf_async_type */
	LIST_ENTRY(rwb_qp) of_device;
};

int rwb_device_make(struct rwb_device *dev, const struct rwf_ops *ops,
		    const struct rwf_device_attr *attr); /* 0 or a negative errno */
void rwb_device_free(struct rwb_device *dev);

/* The calls of a provider that are defined here, as RWB_CALLS. */
RWB_COMMON_CALLS(RWB_PROTOTYPE, rwb_)

/*
 * Fills a slot like want, with a key that nobody can guess. Returns its number or a negative errno. Under the device's lock, as the
 * next.
 */
int rwb_mr_add(rwf_pd *pd, const struct rwb_mr *want, struct rwf_mr *out);
/* Clears the key of a region. Returns its slot, or -EINVAL if it is not one of pd. */
int rwb_mr_remove(rwf_pd *pd, uint32_t lkey);

/* Reports whether key gives this queue pair, or its peer, these rights to [addr, addr+length). Any thread, no lock. */
static inline bool rwb_mr_allows(const rwf_qp *qp, uint32_t key, uint64_t addr, uint64_t length, int access)
{
	const struct rwb_device *dev = (const struct rwb_device *)qp->pd->dev;
	const struct rwb_mr *mr = &dev->mrs[key & (dev->head.attr.max_mr - 1)];

	return key && atomic_load_explicit(&mr->key, memory_order_acquire) == key && mr->pd == qp->pd &&
	       (mr->access & access) == access && (!access || rwb_for_peer(qp, mr->access)) && addr >= mr->addr &&
	       length <= mr->length && addr - mr->addr <= mr->length - length;
}

/* Makes a completion queue of size bytes, the provider's beside the common ones zero. epoll_fd watches wake_fd, with data 0. */
int rwb_cq_make(rwf_device *dev, uint32_t cqe, size_t size, rwf_cq **out);
/* Takes up to n completions, and frees the places of their requests. Returns their number, or -EOVERFLOW if the queue overran. */
int rwb_cq_take(struct rwb_cq *cq, struct rwf_wc *wc, int n);

/* Adds a completion that ends done requests of its direction. Returns false if the queue has no room, and so overran. */
static inline bool rwb_push(struct rwb_cq *cq, struct rwb_qp *qp, struct rwf_wc wc, uint64_t done)
{
	struct rwb_completion *c = rwb_ring_push(&cq->ring);

	if (__builtin_expect(!c, 0)) {
		cq->overrun = true;
		return false;
	}
	wc.qp_num = qp->head.num;
	*c = (struct rwb_completion){wc, &qp->head, done};
	return true;
}

/* Completes the oldest send that is not complete, or the oldest receive, as rwb_push. */
static inline bool rwb_complete_send(struct rwb_cq *cq, struct rwb_qp *qp, const struct rwf_send_wr *wr, enum rwf_wc_status status)
{
	struct rwf_wc wc = {.wr_id = wr->wr_id, .byte_len = wr->length, .status = (uint16_t)status, .opcode = RWF_WC_SEND};

	qp->acked++;
	return (!status && !(wr->flags & RWF_SEND_SIGNALED)) || rwb_push(cq, qp, wc, qp->acked);
}

static inline bool rwb_complete_receive(struct rwb_cq *cq, struct rwb_qp *qp, struct rwf_wc wc)
{
	wc.wr_id = qp->wr_ids[qp->received++ & qp->recv_mask];
	wc.opcode = RWF_WC_RECV_IMM;
	return rwb_push(cq, qp, wc, qp->received);
}

/* Sets the status of the oldest send that is not complete, if there is one, when a queue pair fails. */
static inline void rwb_set_error(struct rwb_qp *qp, enum rwf_wc_status status)
{
	qp->error = qp->acked == qp->sends.posted ? RWF_WC_WR_FLUSH_ERR : status;
}

/* Flushes a queue pair's requests. Returns true if some wait because the completion queue is full. */
bool rwb_flush(struct rwb_cq *cq, struct rwb_qp *qp);

/* Makes the queues of a queue pair, with room for inline sends of so many bytes. Returns 0 or -ENOMEM. */
int rwb_qp_make(struct rwb_qp *qp, const struct rwf_qp_init *init, uint32_t inline_room);
void rwb_qp_free(struct rwb_qp *qp); /* and what it is part of */
/* Adds n receives to the queue, if they fit. The other side's thread may see them from then on. Returns 0 or -ENOMEM. */
int rwb_add_receives(struct rwb_qp *qp, uint64_t wr_id, int n);
/* Makes a queue pair known to its device. Its number has 24 bits, as on an RDMA wire. */
void rwb_qp_enter(struct rwb_qp *qp, rwf_pd *pd);
/* Undoes that. On return no other thread knows the queue pair, and its completions are dropped. */
void rwb_qp_leave(struct rwb_qp *qp, struct rwb_cq *cq);
/*
 * Returns the state of a queue pair whose owner wants to send. The thread that lets peers in tells the peer that it is connected
 * before it sets the state, and holds the device's lock meanwhile.
 */
int rwb_sending_state(struct rwb_qp *qp);
void rwb_raise(struct rwb_qp *qp, enum rwf_async_type type); /* any thread */
bool rwb_take_event(struct rwb_device *dev, struct rwf_async_event *out);

#endif
