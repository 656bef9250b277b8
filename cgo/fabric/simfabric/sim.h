/*
 * Provider sim: hosts, links and queue pairs in one process, driven by calls, the same schedule for the same seed.
 *
 * A world is a set of devices that reach each other. rwf_open("sim", name, "world=ID") opens a device, which is a host, in a world
 * from rwf_sim_new. Without world= it opens one in the process's own world, which begins with its first device and goes with its
 * last. That one runs on the wall clock: polls and waits deliver due events. It serves unmodified code, and no schedule repeats.
 * Further options:
 *
 *   by_reference=1    the device has RWF_DEV_BY_REFERENCE
 *   copies_at_post=1  the device has RWF_DEV_COPIES_AT_POST: the payload lands when it is posted, its completions follow
 *   maps=1            the device has RWF_DEV_MAPS
 *   link=1            the device has RWF_DEV_LINK
 *
 * In other worlds only rwf_sim_step moves anything: polls only take, waits return at once, and time is virtual. An active connect
 * needs its passive peer to have called rwf_connect_qp before it. Otherwise the virtual timeout passes at once. A send is
 * delivered, then acknowledged, as two events, so that a reply can overtake the completion it answers. Order is kept within a
 * queue pair and left to chance across them.
 *
 * The event that delivers reads and writes memory, as a NIC would, on the thread that calls rwf_sim_step.
 */
#ifndef RW_SIM_H
#define RW_SIM_H

#include <stdbool.h>

#include "../base/fabric.h"

/* Adds the provider to those of rwf_open. Returns 0 or a negative errno. */
int rwf_sim_provide(void);

struct rwf_sim;

/* Faults of an attempt to deliver a message, unless stated otherwise. The fatal ones are last. */
enum rwf_sim_fault {
	RWF_SIM_DELAY,        /* the message is held for up to delay_max_ns */
	RWF_SIM_DROP,         /* lost, sent again after an eighth of the ack timeout, until that has passed */
	RWF_SIM_RNR,          /* turned away as if no receive were posted */
	RWF_SIM_SILENT_CLOSE, /* per queue pair that fails: its peer is not notified and learns only from its own sends */
	RWF_SIM_STALE_KEY,    /* refused as if its rkey were stale */
	RWF_SIM_QP_FAIL,      /* the sending queue pair fails */
	RWF_SIM_CQ_OVERRUN,   /* per completion: the queue overruns on it */
	RWF_SIM_FAULTS,
};

struct rwf_sim_network {
	uint32_t chances[RWF_SIM_FAULTS]; /* in 1/65536. If all are 0, nothing fails */
	uint32_t fatal_max;               /* total number of fatal faults; if 0, not limited */
	uint64_t delay_max_ns;
	/*
	 * The event that is due first happens, after a latency drawn per message: a plausible network. Otherwise any possible event
	 * does, with equal chance: the widest set of schedules.
	 */
	bool by_time;
};

/* Makes a world. Returns NULL if too many are open, or without memory. */
struct rwf_sim *rwf_sim_new(uint64_t seed);
/* Releases the world. Devices still open keep it alive until they are closed. */
void rwf_sim_free(struct rwf_sim *);
/* Returns the ID for option world=. */
int rwf_sim_id(const struct rwf_sim *);

/*
 * Lets one event happen. Returns the number of messages that are still to be delivered or acknowledged. With nothing due, up to a
 * millisecond of virtual time passes instead, so that deadlines pass.
 */
int rwf_sim_step(struct rwf_sim *);
uint64_t rwf_sim_now(struct rwf_sim *); /* ns */
void rwf_sim_set_network(struct rwf_sim *, const struct rwf_sim_network *);

/*
 * Stops the host. Nothing comes from it or reaches it. Peers that send to it fail after their ack timeout. Others are not notified.
 */
void rwf_sim_kill_device(rwf_device *);
/* Takes the device's link down or up. Messages from and to it are lost while it is down. Its owner gets a port event. */
void rwf_sim_link(rwf_device *, bool up);
/* Does the same to the devices of that name in the process's own world. Returns their number. */
int rwf_sim_link_named(const char *name, bool up);
/* Lets a fault strike the next attempt to deliver a message of the queue pair. */
void rwf_sim_trigger(rwf_qp *, enum rwf_sim_fault);
/* Leaves room for cqe completions, fewer than it was made for. The queue overruns if it holds more by the next completion. */
void rwf_sim_shrink_cq(rwf_cq *, uint32_t cqe);

/* Returns a hash over all events so far, equal for equal seeds and calls. It leaves addresses and wr_ids out. */
uint64_t rwf_sim_log_hash(struct rwf_sim *);
/* Writes a line for every event to fd from now on. If fd is -1, it stops. */
void rwf_sim_trace(struct rwf_sim *, int fd);

#endif
