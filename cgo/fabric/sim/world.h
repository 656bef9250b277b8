/*
 * The simulation's objects and what its files call of each other, each file standing on those before it. Up to deliver.c
 * everything runs under the world's lock; what comes after step.c takes it.
 */
#ifndef RW_SIM_WORLD_H
#define RW_SIM_WORLD_H

#include "../base/provider.h"
#include "../base/queue.h"
#include "../base/wait.h"
#include "sim.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SIM_NEVER UINT64_MAX

/* What can happen to a queue pair next, each at its own time. */
enum sim_event {
	SIM_DELIVER, /* its oldest undelivered send reaches the peer */
	SIM_ACK,     /* it learns that its delivered sends arrived */
	SIM_GONE,    /* it learns that its peer is gone */
	SIM_GIVE_UP, /* passive: no peer came in time */
	SIM_EVENTS,
};

enum { SIM_MAX_QP = 4096, SIM_MAX_CQ = 4096, SIM_MAX_WR = 16384, SIM_MAX_CQE = 1 << 20, SIM_MAX_MR = 4096, SIM_MAX_INLINE = 4096 };

/* A thread asleep in a world that runs by itself: woken when something may have changed for it. */
struct sim_sleeper {
	sem_t sem;
	struct sim_sleeper *next;
};

struct rwf_sim {
	pthread_mutex_t lock;
	int id, refs; /* under the table's lock: its owner, and every device */
	bool automatic;
	enum rwf_sim_order order;
	uint64_t rng, now_ns, start_ns, hash;
	struct rwf_sim_faults faults;
	uint32_t fatal_count;
	uint32_t last_device, last_qp, last_key;
	uint32_t qps;
	struct sim_device *devices;
	struct sim_qp **active; /* those with an event ahead; room for every queue pair */
	uint32_t active_len, active_cap;
	struct sim_sleeper *sleepers;
	int trace_fd;
};

struct sim_mr {
	uint64_t addr, length;
	struct sim_pd *pd; /* NULL: the slot is free */
	uint32_t lkey, rkey;
	int access;
};

struct sim_device {
	rwf_device base;
	struct rwf_sim *world;
	struct sim_device *next;
	struct sim_qp *qps;
	char name[64];
	uint32_t id, flags;
	uint32_t pds, cqs, mr_count;
	struct sim_mr *mrs;
	uint32_t mr_cap;
	bool dead, down;
	uint64_t up_at_ns; /* when a link that a random fault took down comes back */
	uint32_t events;   /* bit per enum rwf_async_type, of the device itself */
};

struct sim_pd {
	rwf_pd base;
	uint32_t users; /* queue pairs and memory regions */
};

struct sim_cq {
	rwf_cq base;
	struct rwb_ring ring;
	uint32_t qps;
	uint32_t armed; /* completions that end a wait; 0: not armed */
	bool failed, fired;
	atomic_bool woken; /* set by any thread, without the lock */
	struct sim_sleeper sleeper;
};

struct sim_qp {
	rwf_qp base;
	struct sim_device *dev;
	struct sim_pd *pd;
	struct sim_qp *next; /* in the device's list */
	struct sim_qp *peer; /* NULL: not connected yet, or gone */
	struct sim_cq *send_cq, *recv_cq;
	bool by_reference, waiting;
	uint32_t wanted; /* the peer a passive queue pair waits for */
	uint32_t trigger, events;
	int active; /* index in the world's active list; -1: not there */

	/* Requests before acked have completed; those before sent have been delivered. */
	struct rwb_sends sends;
	uint64_t acked, sent;
	uint64_t placed; /* copies_at_post: payloads before this one have landed */

	/* Receive queue: posted from head to tail. Completions not yet polled hold some more. */
	uint64_t *rq;
	uint32_t rq_mask, rq_max, rq_head, rq_tail, rq_held;

	uint64_t due_ns[SIM_EVENTS];
	uint64_t ack_timeout_ns, rnr_timeout_ns;
	uint64_t lost_since_ns, rnr_since_ns; /* SIM_NEVER: not losing, not waiting */
};

static inline struct rwf_sim *sim_of(const struct sim_qp *qp)
{
	return qp->dev->world;
}

/* world.c */
struct rwf_sim *sim_world_join(int id, uint64_t seed, bool automatic);
struct rwf_sim *sim_world_join_own(void); /* the process's own, if there is one */
void sim_world_leave(struct rwf_sim *);
uint64_t sim_random(struct rwf_sim *, uint64_t below);
bool sim_chance(struct rwf_sim *, uint32_t in_65536);
bool sim_fatal_chance(struct rwf_sim *, uint32_t in_65536);
void sim_log(struct rwf_sim *, const char *what, uint32_t who, uint32_t a, uint32_t b);
uint64_t sim_latency(struct rwf_sim *);

/* schedule.c */
struct sim_choice {
	struct sim_qp *qp; /* NULL: nothing may happen */
	enum sim_event event;
	uint64_t due_ns;
};
void sim_at(struct sim_qp *, enum sim_event, uint64_t when_ns);
void sim_deactivate(struct sim_qp *);
struct sim_choice sim_first_due(struct rwf_sim *);
struct sim_choice sim_any_due(struct rwf_sim *);
void sim_wake_sleepers(struct rwf_sim *);

/* memory.c */
/* Returns the region of pd that key names if [addr, addr+len) lies in it, else NULL. */
const struct sim_mr *sim_local_mr(const struct sim_pd *, uint32_t lkey, uint64_t addr, uint32_t len);
const struct sim_mr *sim_remote_mr(const struct sim_qp *, uint32_t rkey, uint64_t addr, uint32_t len);
/* Adds a region. Returns NULL where the device has no room for another, or no memory. */
struct sim_mr *sim_mr_add(struct sim_pd *, uint64_t addr, uint64_t length, int access);
bool sim_mr_remove(struct sim_pd *, uint32_t lkey);

/* complete.c */
void sim_complete_sends(struct sim_qp *, uint64_t upto);
void sim_complete_recv(struct sim_qp *, struct rwf_wc *);
void sim_flush(struct sim_qp *, enum rwf_wc_status first);
void sim_qp_error(struct sim_qp *, enum rwf_wc_status first);
void sim_part(struct sim_qp *);
void sim_raise(struct sim_qp *, enum rwf_async_type);

/* deliver.c */
bool sim_reachable(const struct sim_qp *);
void sim_deliver(struct sim_qp *);
void sim_acknowledge(struct sim_qp *);
void sim_place_early(struct sim_qp *);

/* step.c */
void sim_lock(struct rwf_sim *); /* in a world that runs by itself also lets happen what is due */
void sim_unlock(struct rwf_sim *);
void sim_set_link(struct sim_device *, bool up);
void sim_kill(struct sim_device *);
/* Unlocks, sleeps until woken, until the next event or until until_ns, and locks. */
void sim_sleep(struct rwf_sim *, struct sim_sleeper *, uint64_t until_ns);

/* domain.c */
int sim_alloc_pd(rwf_device *, rwf_pd **);
int sim_dealloc_pd(rwf_pd *);
int sim_reg_mr(rwf_pd *, void *, size_t, int, int, uint64_t, struct rwf_mr *);
int sim_dereg_mr(rwf_pd *, uint32_t);

/* create.c */
int sim_create_cq(rwf_device *, uint32_t, rwf_cq **);
int sim_destroy_cq(rwf_cq *);
int sim_create_qp(rwf_pd *, const struct rwf_qp_init *, rwf_qp **);
int sim_destroy_qp(rwf_qp *);

/* queue.c */
int sim_poll_cq(rwf_cq *, struct rwf_wc *, int);
int sim_req_notify_cq(rwf_cq *, uint32_t);
int sim_wait_cq(rwf_cq *, int64_t);
int sim_wake_cq(rwf_cq *);
int sim_post_send(rwf_qp *, const struct rwf_send_wr *, int);
int sim_post_recv(rwf_qp *, uint64_t, int);
void *sim_map(rwf_qp *, uint32_t rkey, uint64_t raddr, uint32_t length);
int sim_fail_qp(rwf_qp *);

/* connect.c */
int sim_qp_endpoint(rwf_qp *, void *, size_t);
int sim_connect_qp(rwf_qp *, const void *, size_t, const struct rwf_connect_attr *);
int sim_get_async_event(rwf_device *, int, struct rwf_async_event *);

#endif
