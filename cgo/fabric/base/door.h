/*
 * The door of a software provider: its listener, passive queue pairs and asynchronous events. A stranger gets one of a bounded
 * number of places for a bounded time. A peer whose hello names a queue pair that does not wait yet is parked. While no queue pair
 * waits, only some connections are accepted in a second. Others stay in the kernel, where they cost nothing.
 */
#ifndef RW_FABRIC_DOOR_H
#define RW_FABRIC_DOOR_H

#include "soft.h"

#include <sys/socket.h>

enum { RWB_HELLO_MAX = 40, RWB_MAX_HALF_OPEN = 64 };

/* A connection whose hello is incomplete, or whose queue pair does not wait yet. */
struct rwb_half {
	int fd;   /* -1 if unused */
	int file; /* that came with the hello, or -1 */
	uint32_t have;
	bool greeted;
	uint64_t deadline_ns;
	struct sockaddr_storage from;
	_Alignas(8) uint8_t hello[RWB_HELLO_MAX];
};

struct rwb_door;

/* What a provider knows of its connections. Those about a queue pair are called under the device's lock. */
struct rwb_door_ops {
	/* Takes a new connection. Returns false if it is not welcome. */
	bool (*welcome)(struct rwb_door *door, struct rwb_half *half, uint64_t now);
	/* Reads the hello. Returns 1 when it has, 0 if more must come, and -1 if it is invalid. */
	int (*greet)(struct rwb_half *half);
	/* Reports whether the hello names the queue pair, and proves that it may. */
	bool (*calls)(const struct rwb_half *half, struct rwb_qp *qp);
	/* Gives the connection to the queue pair, makes its state RTS and wakes its owner. Returns false if it must end. */
	bool (*admit)(struct rwb_qp *qp, struct rwb_half *half);
	void (*hang_up)(struct rwb_half *half);
	/* Does what is due. Returns the time of the next call, at most until. */
	uint64_t (*update)(struct rwb_door *door, uint64_t now, uint64_t until);
};

struct rwb_door {
	struct rwb_device device;
	const struct rwb_door_ops *ops;
	pthread_mutex_t accept_lock;  /* held by the one thread inside rwf_get_async_event */
	int listen_fd;                /* -1 before it listens */
	uint64_t paused_ns;           /* without descriptors or places new connections wait until then */
	uint64_t unawaited_paused_ns; /* the same while no queue pair waits for a peer */
	struct rwb_half half[RWB_MAX_HALF_OPEN];
};

enum { RWB_PAUSE_MS = 100 }; /* without a descriptor to spare */

int rwb_door_make(struct rwb_door *door, const struct rwf_ops *ops, const struct rwf_device_attr *attr,
		  const struct rwb_door_ops *own);
/* Hangs up on those at the door. The provider then closes listen_fd. */
void rwb_door_empty(struct rwb_door *door);
void rwb_door_free(struct rwb_door *door);

#endif
