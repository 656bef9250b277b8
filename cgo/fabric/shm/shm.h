/*
 * Provider shm: processes of one host. Memory is shared by memfd. A connection is two rings of descriptors in shared memory
 * and one Unix socket, which carries rare messages: the handshake, advertised memory regions and wake-ups. The end of the
 * socket reports the peer's death.
 *
 * Options: users=any lets processes of any user in. By default only processes of the same user and of root are let in.
 *
 * Limits. Both processes must share a network namespace (the listener is an abstract socket). Registration seals the memfd
 * against shrinking, because a peer that has it mapped would die of SIGBUS otherwise. A send completes when its payload is placed
 * and the descriptor published. Toward a queue pair that takes payloads by reference it completes when the descriptor is
 * published, and its source must then stay as it is until the peer answers.
 * An inline send and a plain write are always copied to their target.
 *
 * Trust. The peer can write the shared memory at any time. So a descriptor is copied before it is checked, indexes are
 * private and masked, and a peer's writes can fail its own queue pair only. A queue pair that is passive or takes payloads by
 * reference guards itself further: a peer's file that loses pages under a mapping reads as zeroes and fails the
 * queue pair (guard.c), payloads in a file with holes are copied rather than touched (sparse.c), and the number of mappings
 * and their bytes are bounded. A region that names a peer is advertised to that peer alone. The owner of a region that may not be
 * written seals it.
 */
#ifndef RW_SHM_H
#define RW_SHM_H

#include "../base/provider.h"
#include "../base/door.h"
#include "../base/wait.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
	SHM_MAX_QP_WR = 16384,
	SHM_MR_SLOTS = 4096,    /* a key is 20 random bits over the 12 of its slot */
	SHM_MAX_RETIRED = 4096, /* deregistered mappings that a by-reference queue pair keeps readable */
	SHM_COOKIE = 16,
	SHM_MAX_MAPPINGS = 32768, /* guarded ones of the process; the kernel allows 65530 by default */
	/*
	 * The allowances for peers' messages, in wake-ups: each queue pair's at first, then a completion queue's in a millisecond.
	 */
	SHM_REGION_COST = 16,
	SHM_FREE_COST = 256 * SHM_REGION_COST,
	SHM_COST_PER_MS = 2 * SHM_REGION_COST,
	SHM_MESSAGES_AT_ONCE = 16, /* messages that a queue pair reads while others wait for their turn */
	SHM_MAX_WAITING = 2 << 20, /* bytes of inline payloads of a queue pair that wait for the peer, and at least a few */
	SHM_DEVICE_FLAGS = RWF_DEV_BY_REFERENCE | RWF_DEV_COPIES_AT_POST | RWF_DEV_SHARED_FD | RWF_DEV_MAPS,
};
#define SHM_MAX_MR_SIZE (UINT64_C(1) << 40)
#define SHM_MAX_MAPPED (UINT64_C(1) << 42)
#define SHM_MAX_GUARDED (UINT64_C(1) << 45) /* bytes of address space for all peers that are not trusted */
#define SHM_MAX_FILLED (UINT64_C(64) << 20) /* bytes of a peer's holes that are written to */
#define SHM_DISARMED UINT64_MAX

/* One work request in flight, in a cache line. seq is its number plus one, stored last. */
struct shm_desc {
	alignas(64) uint64_t laddr;
	uint64_t raddr;
	uint32_t lkey, rkey, len, imm;
	uint32_t by_ref;
	_Atomic uint64_t seq;
};
_Static_assert(sizeof(struct shm_desc) == 64, "a descriptor is a cache line");

/* The values that one side publishes to the other. Its owner writes them, except that a wake-up clears rnr_armed. */
struct shm_side {
	alignas(64) _Atomic uint64_t recv_posted; /* receives posted since the start */
	alignas(64) _Atomic uint64_t wake_at;     /* count of descriptors published to me at which to wake me */
	_Atomic uint64_t adverts_issued;          /* changes to my memory regions */
	_Atomic uint64_t adverts_sent;            /* changes whose message is in the socket */
	_Atomic uint32_t rnr_armed;               /* wake me when you post receives */
};

/*
 * The shared memory of a connection. side[0] and the first ring's producer are the active one. Rings follow the page. A ring has a
 * descriptor for every receive that may be posted, so it cannot be full.
 */
struct shm_shared {
	struct shm_side side[2];
};
enum { SHM_RINGS_OFFSET = 4096 };

struct shm_endpoint {
	uint32_t magic;
	uint16_t version, by_ref; /* 1 if it takes payloads by reference */
	uint32_t qp_num, recv_depth;
	uint8_t listener[SHM_COOKIE], cookie[SHM_COOKIE];
};

/* The greeting: the cookies of the queue pair that is called and of the caller. */
struct shm_hello {
	uint32_t magic;
	uint16_t version, zero;
	uint8_t to[SHM_COOKIE], from[SHM_COOKIE];
};
enum { SHM_VERSION = 1, SHM_ENDPOINT_MAGIC = 0x45535752, SHM_HELLO_MAGIC = 0x48535752 }; /* "RWSE", "RWSH" */

/* A peer's region in a queue pair. */
struct shm_remote_mr {
	uint32_t key;
	int access;
	uint64_t addr, len;
	char *data; /* its first byte here */
	void *map;
	size_t map_len;
	int guard;                 /* number of its mapping's guard, or -1 */
	struct shm_sparse *sparse; /* NULL if its file has all its pages, or is trusted to */
	LIST_ENTRY(shm_remote_mr) retired;
};

/* A message about a region, with its memfd if it is new. A message of one byte is a wake-up. */
struct shm_ctl {
	uint32_t type, key, slot, access;
	uint64_t addr, len, offset;
};
enum { SHM_MR_ADD = 1, SHM_MR_DEL = 2 };

struct shm_device {
	struct rwb_door door; /* the device's lock guards its lists, regions and adverts; never held while waiting */
	uint8_t name[SHM_COOKIE];
	bool any_user;
};

struct shm_cq {
	struct rwb_cq base;
	bool overrun_told;
	bool ready; /* the next wait returns: armed and a completion has arrived */
	uint64_t now_ms;
	int64_t allowance; /* allowance left for messages */
	uint32_t tears_seen;
	TAILQ_HEAD(shm_qps, shm_qp) qps; /* polling begins with each in turn */
};

struct shm_qp {
	struct rwb_qp base;
	struct shm_cq *cq;
	TAILQ_ENTRY(shm_qp) of_cq;

	/* Receiving. */
	struct shm_desc *rx;
	bool by_ref;

	/* Sending. Requests that are not complete wait in the queue. Others hold their places until their completion is polled. */
	uint8_t *waiting; /* inline payloads of requests that wait, as a ring */
	uint32_t waiting_next, waiting_used, waiting_cap;
	bool peer_by_ref, ended;
	struct shm_desc *tx;
	struct shm_side *mine, *peer;
	uint64_t tx_tail, tx_credit, tx_rung, last_wake;
	uint64_t adverts_seen;
	uint32_t tx_mask;
	uint64_t stalled_ms;  /* when the oldest waiting request began to wait, or 0 if it was not tried yet */
	bool stalled_on_peer; /* for the peer's regions, not for its receives */

	struct shm_remote_mr *remote[SHM_MR_SLOTS]; /* NULL if the peer has none there */
	LIST_HEAD(, shm_remote_mr) retired;
	int retired_len;
	uint64_t mapped, filled;
	int allowance; /* allowance for its messages beside the queue's */
	uint32_t mappings;
	bool guarded; /* the peer is not trusted with this process's life */
	int shared_guard;

	/* Setup and the socket. dirty, known, issued are under the device's lock. */
	int sock, pidfd;
	_Atomic bool backlog;
	uint64_t issued;
	uint64_t dirty[SHM_MR_SLOTS / 64], known[SHM_MR_SLOTS / 64];
	void *shared;
	size_t shared_len;
	struct shm_endpoint self, peer_ep;
	uint32_t rnr_ms, ack_ms;
};

static inline struct shm_device *shm_dev(struct rwf_device *d)
{
	return (struct shm_device *)d;
}

static inline int shm_state(struct shm_qp *q)
{
	return atomic_load_explicit(&q->base.head.state, memory_order_acquire);
}

/* An epoll event names its queue pair. The lowest bit marks the file that reports the end of the peer's process. */
enum { SHM_PEER_PROCESS = 1 };

RWB_OWN_CALLS(RWB_PROTOTYPE, shm_)

/* copy.c */
void shm_copy(void *dst, const void *src, size_t n, int past_the_cache);

/* closing.c: no other file calls close(2) */
bool shm_closing_full(void);
void shm_close_own(int fd);
void shm_close_later(int fd);
bool shm_close_received(int fd);

/* sock.c */
int shm_random(void *buf, size_t len);
int shm_listen(const uint8_t *name);
int shm_dial(const uint8_t *name, uint64_t deadline_ms, int cancel_fd);
bool shm_peer_allowed(int sock, bool any_user);
int shm_peer_pidfd(int sock);
int shm_send(int sock, const void *buf, size_t len, int fd);
int shm_recv(int sock, void *buf, size_t cap, int *fd);
void shm_hang_up(int sock);
void shm_wake(struct shm_qp *q);

/* cq.c */
void shm_enter_error(struct shm_qp *q, enum rwf_wc_status status);
void shm_cq_check(struct shm_cq *cq);
int shm_cq_watch(struct shm_qp *q);
void shm_cq_unwatch(struct shm_qp *q);

/* memory.c */
void shm_advertise_all(struct shm_qp *q);
void shm_advertise(struct shm_qp *q);

/* guard.c */
int shm_guard_start(void);
int shm_guard_add(void *map, size_t len);
void shm_guard_remove(int guard);
bool shm_guard_torn(int guard);
uint32_t shm_guard_free(void);
extern _Atomic uint32_t shm_tears; /* mappings that lost pages, since the start */

/* sparse.c */
int shm_sparse_open(struct shm_remote_mr *m, int fd, uint64_t start);
void shm_sparse_close(struct shm_remote_mr *m);
bool shm_sparse_there(struct shm_remote_mr *m, const char *data, uint32_t len);
bool shm_sparse_copy(const struct shm_remote_mr *m, void *dst, const char *data, uint32_t len);
bool shm_sparse_fill(struct shm_qp *q, struct shm_remote_mr *m, const char *data, uint32_t len);

/* remote.c */
struct shm_remote_mr *shm_remote_find(struct shm_qp *q, uint32_t key, uint64_t addr, uint32_t len, int access);
char *shm_remote_target(struct shm_qp *q, uint32_t key, uint64_t addr, uint32_t len);
bool shm_lost_pages(struct shm_qp *q);
int shm_drain(struct shm_qp *q);
int shm_sync_regions(struct shm_qp *q);
void shm_unmap_remote(struct shm_qp *q);

/* receive.c */
bool shm_receive(struct shm_qp *q);

/* post.c */
void *shm_map(rwf_qp *qp, uint32_t rkey, uint64_t raddr, uint32_t length);
void shm_push_waiting(struct shm_qp *q, uint64_t now_ms);

/* connect.c */
int shm_decode_endpoint(const void *buf, size_t len, struct shm_endpoint *out);
extern const struct rwb_door_ops shm_door_ops;
void shm_shut_door(struct shm_device *d);
void shm_unmap_rings(struct shm_qp *q);

#endif
