/*
 * The simulation's objects, and the calls between its files. Each file uses only files before it. Up to deliver.c everything runs
 * under the world's lock. The files after step.c take it.
 */
#ifndef RW_SIM_WORLD_H
#define RW_SIM_WORLD_H

#include "../base/soft.h"
#include "../base/wait.h"
#include "sim.h"

#define SIM_NEVER UINT64_MAX

/* The possible next events of a queue pair, each at its own time. */
enum sim_event {
	SIM_DELIVER, /* its oldest undelivered send reaches the peer */
	SIM_ACK,     /* it learns that its delivered sends arrived */
	SIM_GONE,    /* it learns that its peer has ended */
	SIM_GIVE_UP, /* passive: no peer came in time */
	SIM_EVENTS,
};

struct sim_due {
	uint64_t at_ns; /* SIM_NEVER if it is not ahead */
	struct sim_qp *qp;
	TAILQ_ENTRY(sim_due) entry;
};

/* A thread asleep in a world that runs by itself, woken when something may have changed for it. */
struct sim_sleeper {
	int event_fd;
	LIST_ENTRY(sim_sleeper) entry;
};

struct rwf_sim {
	pthread_mutex_t lock;
	int id, refs; /* under the table's lock: its owner, and every device */
	bool automatic;
	uint64_t rng, now_ns, start_ns, hash;
	struct rwf_sim_network network;
	uint32_t fatal_count;
	uint32_t last_device, last_qp;
	LIST_HEAD(, sim_device) devices;
	TAILQ_HEAD(, sim_due) due; /* the earliest first */
	LIST_HEAD(, sim_sleeper) sleepers;
	int trace_fd;
};

struct sim_device {
	struct rwb_device base;
	struct rwf_sim *world;
	LIST_ENTRY(sim_device) entry;
	uint32_t id;
	bool dead, down;
	uint32_t events; /* bit per enum rwf_async_type, of the device itself */
};

struct sim_cq {
	struct rwb_cq base;
	uint32_t armed; /* completions that end a wait, or 0 if not armed */
	bool fired;
};

struct sim_qp {
	struct rwb_qp base;
	struct sim_device *dev;
	struct sim_qp *peer; /* NULL if not connected yet, or ended */
	struct sim_cq *cq;
	bool by_reference;
	uint32_t wanted;            /* the peer for which a passive queue pair waits */
	enum rwf_sim_fault trigger; /* of the next attempt to deliver, or RWF_SIM_FAULTS */

	uint64_t sent;   /* requests before this one have been delivered */
	uint64_t placed; /* copies_at_post: payloads before this one have landed */

	struct sim_due due[SIM_EVENTS];
	uint64_t ack_timeout_ns, rnr_timeout_ns;
	uint64_t lost_since_ns, rnr_since_ns; /* SIM_NEVER if not losing, or not waiting */
};

extern const struct rwf_ops rwf_sim_ops;

static inline struct rwf_sim *sim_of(const struct sim_qp *qp)
{
	return qp->dev->world;
}

/*
 * Reports whether a key gives the queue pair, or its peer, access to [addr, addr+len). An rkey is the complement of its lkey, so
 * that a key that is used on the wrong side names nothing.
 */
static inline bool sim_local_access(const struct sim_qp *qp, uint32_t lkey, uint64_t addr, uint32_t len)
{
	return rwb_mr_allows(&qp->base.head, lkey, addr, len, 0);
}

static inline bool sim_remote_access(const struct sim_qp *qp, uint32_t rkey, uint64_t addr, uint32_t len)
{
	return rwb_mr_allows(&qp->base.head, ~rkey, addr, len, RWF_ACCESS_REMOTE_WRITE);
}

/* world.c */
struct rwf_sim *sim_world_join(int id); /* until rwf_sim_free */
uint64_t sim_random(struct rwf_sim *, uint64_t below);
bool sim_chance(struct rwf_sim *, enum rwf_sim_fault);
void sim_log(struct rwf_sim *, const char *what, uint32_t who, uint32_t a, uint32_t b);
uint64_t sim_latency(struct rwf_sim *);

/* schedule.c */
void sim_at(struct sim_qp *, enum sim_event, uint64_t at_ns);
void sim_cancel(struct sim_qp *, enum sim_event);
void sim_cancel_all(struct sim_qp *);
void sim_wake_sleepers(struct rwf_sim *);

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

RWB_OWN_CALLS(RWB_PROTOTYPE, sim_)
int sim_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out);

/* step.c */
void sim_lock(struct rwf_sim *); /* in a world that runs by itself, due events also happen */
void sim_unlock(struct rwf_sim *);
/* Unlocks, sleeps until event_fd is readable, until the next event or until until_ns, and locks. */
void sim_sleep(struct rwf_sim *, int event_fd, uint64_t until_ns);

/* queue.c */
void *sim_map(rwf_qp *, uint32_t rkey, uint64_t raddr, uint32_t length);

#endif
