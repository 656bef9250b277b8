/*
 * Provider shm: processes of one host. Memory is shared by memfd. A connection is two rings of descriptors in shared memory
 * and one Unix socket, which carries what is rare: the handshake, advertised memory regions and wake-ups. Its end reports
 * the peer's death.
 *
 * Options: users=any lets processes of any user in; else only those of the same user, and root's. mapped=BYTES bounds the
 * peers' memory that this process maps, each file counted once; by default it is three quarters of the machine's.
 *
 * Limits. Both processes must share a network namespace (the listener is an abstract socket). Registration seals the memfd
 * against shrinking, since a peer that has it mapped would die of SIGBUS otherwise. A send completes when its payload is placed
 * and the descriptor published. Toward a queue pair that takes payloads by reference it completes when the descriptor is
 * published, and its source must then stay as it is until the peer answers.
 * An inline send and a plain write are always copied to their target.
 *
 * Trust. The peer can write the shared memory at any time. So a descriptor is copied before it is checked, indexes are
 * private and masked, and what a peer writes there can fail its own queue pair only. A queue pair that is passive or takes
 * payloads by reference guards itself further: a peer's file that loses pages under a mapping reads as zeroes and fails the
 * queue pair (guard.c), payloads in a file with holes are copied rather than touched (sparse.c), and the number of mappings
 * and their bytes are bounded. A region that names a peer is told to nobody else; one that may not be written is sealed so by
 * its owner.
 */
#ifndef RW_SHM_H
#define RW_SHM_H

#include "../base/provider.h"
#include "../base/queue.h"
#include "../base/wait.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
	SHM_MAX_QP_WR = 16384,
	SHM_MAX_INLINE = 4 << 20,
	SHM_MAX_CQE = 1 << 20,
	SHM_MR_SLOTS = 4096, /* a key is 20 random bits over the 12 of its slot */
	SHM_MR_PAGE = 64,
	SHM_MAX_RETIRED = 4096, /* deregistered mappings that a by-reference queue pair keeps readable */
	SHM_COOKIE = 16,
	SHM_ENDPOINT_LEN = 48,
	SHM_HELLO_LEN = 40,
	SHM_MAX_MAPPINGS = 32768,  /* guarded ones of the process; the kernel allows 65530 by default */
	SHM_MAX_WAITING = 2 << 20, /* bytes of inline payloads of a queue pair that wait for the peer, and at least a few */
	SHM_DEVICE_FLAGS = RWF_DEV_BY_REFERENCE | RWF_DEV_COPIES_AT_POST | RWF_DEV_SHARED_FD | RWF_DEV_MAPS,
};
#define SHM_MAX_MR_SIZE (UINT64_C(1) << 40)
#define SHM_MAX_MAPPED (UINT64_C(1) << 42)
#define SHM_MAX_FILLED (UINT64_C(64) << 20) /* bytes of a peer's holes that are written to */
#define SHM_DISARMED UINT64_MAX

/* One work request on its way; a cache line. seq is its number plus one, stored last. */
struct shm_desc {
	alignas(64) uint64_t laddr;
	uint64_t raddr;
	uint32_t lkey, rkey, len, imm;
	uint32_t by_ref;
	_Atomic uint64_t seq;
};
_Static_assert(sizeof(struct shm_desc) == 64, "a descriptor is a cache line");

/* What one side publishes to the other. Its owner writes it, except that a wake-up clears rnr_armed. */
struct shm_side {
	alignas(64) _Atomic uint64_t recv_posted; /* receives posted since the start */
	alignas(64) _Atomic uint64_t wake_at;     /* wake me once this many descriptors were published to me */
	_Atomic uint64_t adverts_issued;          /* changes to my memory regions */
	_Atomic uint64_t adverts_sent;            /* those whose message is in the socket */
	_Atomic uint32_t rnr_armed;               /* wake me when you post receives */
};

/*
 * The shared memory of a connection: side[0] and the first ring's producer are the active one. Rings follow the page. A ring has
 * a descriptor for every receive that may be posted, so it cannot be full.
 */
struct shm_shared {
	struct shm_side side[2];
};
enum { SHM_RINGS_OFFSET = 4096 };

struct shm_endpoint {
	uint32_t qp_num, recv_depth;
	bool by_ref;
	uint8_t listener[SHM_COOKIE], cookie[SHM_COOKIE];
};

/* A registered region. key is 0 while the slot is free and is stored last. The rest changes under the device's lock. */
struct shm_mr {
	_Atomic uint32_t key;
	uint32_t last_key;
	int access, fd;
	uint64_t addr, len, offset;
	struct rwf_pd *pd;
};

/* A peer's region as this queue pair knows it. */
struct shm_remote_mr {
	uint32_t key; /* 0: none */
	int access;
	uint64_t addr, len;
	char *data; /* its first byte here */
	void *map;
	size_t map_len;
	size_t populated;          /* bytes of it whose page table entries are there, or are not to be made ahead */
	int guard;                 /* of its mapping; -1: not guarded */
	struct shm_sparse *sparse; /* NULL: its file has all its pages, or is trusted to */
};

/* A message about a region, with its memfd when it is new. A message of one byte is a wake-up. */
struct shm_ctl {
	uint32_t type, key, slot, access;
	uint64_t addr, len, offset;
};
enum { SHM_MR_ADD = 1, SHM_MR_DEL = 2 };

struct shm_retired {
	void *map;
	size_t len;
	int guard;
};

struct shm_half_open {
	int sock, fd; /* fd: the rings, once the greeting came */
	uint64_t since_ms;
	uint8_t to[SHM_COOKIE], from[SHM_COOKIE];
};
enum {
	SHM_MAX_HALF_OPEN = 128,
	SHM_HELLO_MS = 1000,     /* to greet in */
	SHM_HELLO_FULL_MS = 100, /* the same while others wait at the door */
	SHM_ACCEPT_MS = 10000,   /* for the queue pair it asks for to be connected from its side */
};

struct shm_device {
	struct rwf_device base;
	pthread_mutex_t lock; /* the lists below, regions, what is advertised; never held while waiting */
	struct shm_qp *qps;
	struct shm_cq *cqs;
	unsigned pds;
	uint32_t next_qp_num, next_mr;
	struct shm_mr mr[SHM_MR_SLOTS];

	pthread_mutex_t accept_lock; /* one thread at a time lets peers in */
	int listener, event_fd;
	uint8_t name[SHM_COOKIE];
	struct shm_half_open half[SHM_MAX_HALF_OPEN];
	int halves;
	bool any_user;
	uint64_t max_mapped;
	uint64_t accept_paused_ms; /* out of descriptors: the listener is left alone until then */
};

struct shm_cq {
	struct rwf_cq base;
	struct rwb_ring ring;
	bool overrun, overrun_told;
	bool ready, woken; /* the next wait returns: armed, and it is there already; shm_wake_cq was called */
	uint64_t now_ms;
	uint32_t tears_seen;
	struct shm_qp **qps;
	int nqps, cap, start;
	int epfd, wake_fd;
	_Atomic uint32_t events;
	struct shm_cq *next;
};

struct shm_qp {
	struct rwf_qp base;
	struct shm_cq *send_cq, *recv_cq;

	/* Receiving. */
	struct shm_desc *rx;
	uint64_t rx_head;
	uint32_t rx_mask, max_recv;
	uint64_t *rq; /* wr_ids */
	_Atomic uint64_t rq_posted;
	bool by_ref;

	/* Sending. Requests from sent on wait in the queue; those before hold their places until their completion is polled. */
	struct rwb_sends sends;
	uint8_t *waiting; /* inline payloads of requests that wait, as a ring */
	uint32_t waiting_next, waiting_used, waiting_cap;
	uint64_t sent;
	bool peer_by_ref, flushed;
	struct shm_desc *tx;
	struct shm_side *mine, *peer;
	uint64_t tx_tail, tx_credit, tx_rung, last_wake;
	uint64_t adverts_seen;
	uint32_t tx_mask;
	uint64_t stalled_ms;  /* since when the oldest waiting request waits; 0: it was not tried yet */
	bool stalled_on_peer; /* for the peer's regions, not for its receives */

	struct shm_remote_mr *remote[SHM_MR_SLOTS / SHM_MR_PAGE];
	struct shm_retired *retired;
	int retired_len;
	uint64_t mapped, populate_ns, filled;
	int unpopulated; /* regions that are not populated in full */
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
	uint64_t deadline_ms; /* passive: when the peer is given up */
	uint32_t rnr_ms, ack_ms;
	_Atomic uint32_t events;
	struct shm_qp *next;
};

static inline struct shm_device *shm_dev(struct rwf_device *d)
{
	return (struct shm_device *)d;
}

static inline int shm_state(struct shm_qp *q)
{
	return atomic_load_explicit(&q->base.state, memory_order_acquire);
}

/* An epoll event names its queue pair. The lowest bit marks the file that reports the end of the peer's process. */
enum { SHM_PEER_PROCESS = 1 };

/* wire.c: pure */
void shm_encode_endpoint(const struct shm_endpoint *ep, uint8_t out[SHM_ENDPOINT_LEN]);
int shm_decode_endpoint(const uint8_t *buf, size_t len, struct shm_endpoint *out);
void shm_encode_hello(const uint8_t *to, const uint8_t *from, uint8_t out[SHM_HELLO_LEN]);
int shm_decode_hello(const uint8_t *buf, size_t len, uint8_t *to, uint8_t *from);

/* copy.c: the widest stores the processor has are its level */
enum { SHM_COPY_BASE, SHM_COPY_AVX2, SHM_COPY_AVX512 };
int shm_copy_level(void);
void shm_copy_with(int level, void *dst, const void *src, size_t n, int past_the_cache);
void shm_copy(void *dst, const void *src, size_t n, int past_the_cache);

/* sock.c */
int shm_random(void *buf, size_t len);
int shm_listen(const uint8_t *name);
int shm_dial(const uint8_t *name, uint64_t deadline_ms, int cancel_fd);
bool shm_peer_allowed(int sock, bool any_user);
int shm_peer_pidfd(int sock);
int shm_send(int sock, const void *buf, size_t len, int fd);
int shm_recv(int sock, void *buf, size_t cap, int *fd);
void shm_wake(struct shm_qp *q);

/* cq.c */
int shm_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out);
int shm_destroy_cq(rwf_cq *cq);
int shm_wake_cq(rwf_cq *cq);
int shm_cq_attach(struct shm_cq *cq, struct shm_qp *q);
void shm_cq_detach(struct shm_cq *cq, struct shm_qp *q);
int shm_cq_watch(struct shm_cq *cq, struct shm_qp *q);
void shm_cq_unwatch(struct shm_cq *cq, struct shm_qp *q);

/* A new completion, to be filled; NULL if the queue overran. */
static inline struct rwb_completion *shm_cq_push(struct shm_cq *cq)
{
	struct rwb_completion *e = rwb_ring_push(&cq->ring);

	if (__builtin_expect(!e, 0))
		cq->overrun = true;
	return e;
}

/* mr.c */
int shm_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t offset, struct rwf_mr *out);
int shm_dereg_mr(rwf_pd *pd, uint32_t lkey);
bool shm_mr_allows(const struct shm_qp *q, uint32_t key, uint64_t addr, uint32_t len, int access);
void shm_advertise_all(struct shm_qp *q);
void shm_advertise(struct shm_qp *q);

/* guard.c */
struct stat;
int shm_guard_start(void);
int shm_guard_add(void *map, size_t len, const struct stat *st, uint64_t offset, uint64_t max_bytes);
void shm_guard_retire(int guard);
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
/* Makes some of the page table entries of the peer's regions, for a small part of a millisecond. */
void shm_populate(struct shm_qp *q);
void shm_unmap_remote(struct shm_qp *q);

/* receive.c */
bool shm_receive(struct shm_qp *q);

/* fail.c */
void shm_raise(struct shm_qp *q, int event);
void shm_enter_error(struct shm_qp *q, int send_status);
void shm_cq_check(struct shm_cq *cq);

/* post.c */
int shm_post_send(rwf_qp *qp, const struct rwf_send_wr *wr, int n);
int shm_post_recv(rwf_qp *qp, uint64_t wr_id, int n);
void *shm_map(rwf_qp *qp, uint32_t rkey, uint64_t raddr, uint32_t length);
void shm_push_waiting(struct shm_qp *q, uint64_t now_ms);

/* progress.c */
int shm_poll_cq(rwf_cq *cq, struct rwf_wc *wc, int n);
int shm_req_notify_cq(rwf_cq *cq, uint32_t count);
int shm_wait_cq(rwf_cq *cq, int64_t timeout_us);

/* qp.c */
int shm_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out);
int shm_destroy_qp(rwf_qp *qp);
int shm_qp_endpoint(rwf_qp *qp, void *buf, size_t cap);
int shm_fail_qp(rwf_qp *qp);

/* connect.c */
int shm_connect_qp(rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr);
int shm_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out);
void shm_drop_half_open(struct shm_device *d);
void shm_unmap_rings(struct shm_qp *q);

#endif
