/*
 * The transport contract, in libibverbs' words. Code above this header is written once, against registered memory,
 * RDMA WRITE WITH IMMEDIATE and completion queues. A provider (ibv, shm, tcp) implements it.
 *
 * Calls return 0 or a count on success and a negative errno on failure. rwf_last_error() then holds the text, per thread.
 *
 * Threads. A completion queue and the queue pairs bound to it belong to one owner thread at a time. Only that thread calls
 * create, connect, post, map, poll, arm, wait and destroy. Any thread may call rwf_wake_cq, rwf_reg_mr, rwf_dereg_mr and
 * rwf_get_async_event. The last also accepts a passive peer's connection, which the provider publishes to the owner safely.
 *
 * Strictness. A write with immediate consumes a posted receive. Without one the sender retries (receiver not ready) until
 * its timeout and then fails. Every write is checked for keys, access rights and bounds. A full send queue is -ENOMEM and
 * posts nothing further. A completion queue that overruns is an error of the queue, and its queue pairs fail. A completion
 * is never lost. A provider may instead refuse queue pairs that could overrun it (ibv does), so a completion queue should be
 * as large as the sum of their queues. An error moves the queue pair to ERR and flushes every outstanding send and posted
 * receive.
 */
#ifndef RW_FABRIC_H
#define RW_FABRIC_H

#include <stddef.h>
#include <stdint.h>

typedef struct rwf_device rwf_device;
typedef struct rwf_pd rwf_pd;
typedef struct rwf_cq rwf_cq;
typedef struct rwf_qp rwf_qp;

/* Values are those of enum ibv_wc_status, so that a status reads alike for every provider. */
enum rwf_wc_status {
	RWF_WC_SUCCESS = 0,
	RWF_WC_LOC_LEN_ERR = 1,
	RWF_WC_LOC_QP_OP_ERR = 2,
	RWF_WC_LOC_PROT_ERR = 4,
	RWF_WC_WR_FLUSH_ERR = 5,
	RWF_WC_REM_INV_REQ_ERR = 9,
	RWF_WC_REM_ACCESS_ERR = 10,
	RWF_WC_REM_OP_ERR = 11,
	RWF_WC_RETRY_EXC_ERR = 12,
	RWF_WC_RNR_RETRY_EXC_ERR = 13,
	RWF_WC_FATAL_ERR = 19,
	RWF_WC_GENERAL_ERR = 21,
};

enum rwf_opcode { RWF_WRITE = 0, RWF_WRITE_WITH_IMM = 1 };
enum rwf_wc_opcode { RWF_WC_SEND = 0, RWF_WC_RECV_IMM = 1 };

enum rwf_send_flags {
	RWF_SEND_SIGNALED = 1,
	RWF_SEND_INLINE = 2,     /* the source may be reused on return; lkey is not read */
	RWF_SEND_PAST_CACHE = 4, /* hint: nobody reads the target soon, so a copying provider may bypass the cache */
	RWF_SEND_PLACED = 8,     /* the payload is at the target already (rwf_map); laddr and lkey are not read */
	RWF_SEND_SOLICITED = 16, /* the sender lacks buffers: rwf_rest_cq acknowledges this message */
};

enum rwf_access { RWF_ACCESS_LOCAL_WRITE = 1, RWF_ACCESS_REMOTE_WRITE = 2 };
/*
 * Beside the rights, a region's access names its peer: 0 is every peer of the protection domain, n is the peers of queue pairs
 * created for peer n. An RDMA NIC has no such check. With it the key is the secret.
 */
#define RWF_ACCESS_PEER_SHIFT 8
#define RWF_ACCESS_PEER_MAX 0xffff

enum rwf_qp_state { RWF_QPS_INIT = 1, RWF_QPS_RTR = 2, RWF_QPS_RTS = 3, RWF_QPS_ERR = 6 };

enum rwf_device_flags {
	RWF_DEV_BY_REFERENCE = 1,   /* queue pairs created with RWF_QP_BY_REFERENCE get payloads in the sender's memory */
	RWF_DEV_COPIES_AT_POST = 2, /* a post moves the payload itself, so post while the source is hot, one at a time */
	RWF_DEV_ANY_MEMORY = 4,     /* registering ordinary memory costs nothing, so any buffer may be registered at any time */
	RWF_DEV_SHARED_FD = 8,      /* memory can be registered only with the memfd behind it */
	RWF_DEV_LINK = 16,          /* it has a port whose link can fail; it has neither of the first two, nor the next */
	RWF_DEV_MAPS = 32,          /* a peer's memory is mapped here (rwf_map) */
};

struct rwf_device_attr {
	char provider[16];
	char name[64];
	uint64_t max_mr_size;
	uint32_t max_qp, max_qp_wr, max_cq, max_cqe, max_mr, max_inline;
	uint32_t mtu;   /* path MTU in bytes, or 0 if not packetised */
	uint32_t flags; /* enum rwf_device_flags */
};

struct rwf_mr {
	uint64_t addr; /* also the remote address of its first byte */
	uint64_t length;
	uint32_t lkey, rkey;
};

struct rwf_send_wr {
	uint64_t wr_id;
	uint64_t laddr;
	uint64_t raddr;
	uint32_t length; /* if 0, the immediate travels alone */
	uint32_t lkey, rkey;
	uint32_t imm; /* host byte order here; network order on an RDMA wire */
	uint16_t opcode;
	uint16_t flags;
	uint32_t reserved;
};

/* On a status other than success only wr_id, status and qp_num are valid (ibv_poll_cq(3)). */
struct rwf_wc {
	uint64_t wr_id;
	uint64_t addr;     /* by reference, the payload's address in this process; otherwise 0, and it lies at the target */
	uint64_t src_addr; /* by reference, the payload's address in the sender, valid as the target of a reply; otherwise 0 */
	uint32_t src_rkey; /* by reference, the sender's key for src_addr; otherwise 0 */
	uint32_t byte_len;
	uint32_t imm;
	uint32_t qp_num;
	uint16_t status;
	uint16_t opcode;
};

enum rwf_qp_flags {
	RWF_QP_BY_REFERENCE = 1,
	RWF_QP_IMM_ONLY = 2, /* a write of the peer without immediate fails the queue pair, if it takes this side's time */
};

struct rwf_qp_init {
	rwf_cq *cq; /* gets the completions of its sends and its receives */
	uint32_t max_send_wr, max_recv_wr, max_inline;
	uint32_t flags; /* enum rwf_qp_flags */
	uint32_t peer;  /* number of its peer (RWF_ACCESS_PEER_SHIFT); if 0, regions that name a peer are not for it */
};

struct rwf_connect_attr {
	uint32_t active;         /* if 1, this side opens the connection and returns when it is up; if 0, it waits */
	uint32_t timeout_ms;     /* active: time to try; passive: time for the peer to arrive before the queue pair fails */
	uint32_t rnr_timeout_ms; /* time for which a send waits for a posted receive before it fails; if 0, 1000 */
	uint32_t ack_timeout_ms; /* time for which an unacknowledged send is retried before it fails; if 0, 1000 */
	int32_t cancel_fd;       /* active: a file that ends the wait with -ECANCELED when it is readable, or 0 */
};

enum rwf_async_type {
	RWF_EVENT_QP_ESTABLISHED = 1, /* a passive queue pair's peer arrived */
	RWF_EVENT_QP_FATAL = 2,
	RWF_EVENT_CQ_ERR = 3,
	RWF_EVENT_PORT_ACTIVE = 4,
	RWF_EVENT_PORT_ERR = 5,
	RWF_EVENT_DEVICE_FATAL = 6,
};

struct rwf_async_event {
	uint32_t type;
	uint32_t qp_num;
};

/* Returns the name of provider i, fastest first, and NULL after the last. */
const char *rwf_provider(int i);
/* Reports whether its devices are NICs: a host may have several, and uses all unless some are chosen. */
int rwf_has_nics(const char *provider);
const char *rwf_last_error(void);
/* Sets rwf_last_error() and returns -err. It is for providers and code built on the contract. */
int rwf_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *rwf_wc_status_str(int status);
const char *rwf_qp_state_str(int state);
const char *rwf_async_type_str(uint32_t type);

/*
 * Opens a device by the provider's name for it. If device is "", it opens the first. options are "key=value,key=value", documented
 * in the provider's own header. An unknown key is -EINVAL, and the error names it.
 */
int rwf_open(const char *provider, const char *device, const char *options, rwf_device **out);
int rwf_close(rwf_device *dev); /* -EBUSY while a pd or cq of it is open */
int rwf_query(rwf_device *dev, struct rwf_device_attr *out);
/* Writes the names of a provider's devices into buf, '\n' between them. Returns their number. */
int rwf_list(const char *provider, char *buf, size_t cap);

int rwf_alloc_pd(rwf_device *dev, rwf_pd **out);
int rwf_dealloc_pd(rwf_pd *pd);

/*
 * Registers [addr, addr+length). fd and fd_offset identify the memfd behind the range, as in ibv_reg_dmabuf_mr(3). fd is -1 without
 * a memfd. Every queue pair of the protection domain may then use the keys, including queue pairs that connect later.
 */
int rwf_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out);
int rwf_dereg_mr(rwf_pd *pd, uint32_t lkey);

int rwf_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out);
int rwf_destroy_cq(rwf_cq *cq); /* -EBUSY while a queue pair uses it */
/* Makes progress, and takes up to n completions, oldest first per queue pair. Returns -EOVERFLOW if the queue overran. */
int rwf_poll_cq(rwf_cq *cq, struct rwf_wc *wc, int n);
/*
 * Arms the queue. The next wait returns when one of its queue pairs has count completions, or one in error, or on a wake. count is
 * a hint, and fewer may end the wait. A caller arms the queue, polls once more, and then waits.
 */
int rwf_req_notify_cq(rwf_cq *cq, uint32_t count);
/* Returns 1 if the queue has completions, or 0 after timeout_us. */
int rwf_wait_cq(rwf_cq *cq, int64_t timeout_us);
/*
 * Acknowledges solicited messages that the queue has taken. An owner calls it before it turns to other work for some time, because
 * the peers' buffers may stay in use until then.
 */
void rwf_rest_cq(rwf_cq *cq);
/* Makes the present or the next wait return. Any thread may call it, and a signal handler. */
int rwf_wake_cq(rwf_cq *cq);

int rwf_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out);
int rwf_destroy_qp(rwf_qp *qp); /* completions not yet polled are dropped */
uint32_t rwf_qp_num(const rwf_qp *qp);
int rwf_qp_state(const rwf_qp *qp);
enum { RWF_ENDPOINT_MAX = 256 };
/*
 * Writes the endpoint of this queue pair, which the peer needs to connect, and returns its length. Only the provider interprets it.
 */
int rwf_qp_endpoint(rwf_qp *qp, void *buf, size_t cap);
/*
 * Gives the queue pair its peer's endpoint and brings it to RTS: on return if it is active, or when the peer arrives if it is
 * passive.
 */
int rwf_connect_qp(rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr);
/* Moves the queue pair to ERR and flushes all outstanding requests. The peer sees an error too. */
int rwf_fail_qp(rwf_qp *qp);

/*
 * Posts n work requests in order and rings the doorbell once. Returns the number of posted requests. If fewer than n were posted,
 * rwf_last_error() describes the error of the next. If none were posted, returns its negative errno.
 */
int rwf_post_send(rwf_qp *qp, const struct rwf_send_wr *wr, int n);
/* Posts n receives without buffers, all with this wr_id. */
int rwf_post_recv(rwf_qp *qp, uint64_t wr_id, int n);

/*
 * Returns the address in this process of the peer's [raddr, raddr+length), after the checks of a remote write. Returns NULL, and
 * sets rwf_last_error(), if the memory may not be written, if the device does not map, or while earlier requests wait in the send
 * queue, because they must land first. The caller then posts an ordinary write, which waits for them or fails.
 *
 * The address is valid until the owner's next call with this queue pair or one of its completion queues. Data stored there reaches
 * the peer's memory at once, as by a plain write. A write with immediate and RWF_SEND_PLACED then announces it. The provider checks
 * key and bounds again, takes a receive, and carries the immediate and the length. It publishes with a release store, which orders
 * ordinary stores. Streaming stores need a store fence (sfence) before the post. The flag is -EINVAL if the device does not map,
 * and with a plain or inline write.
 */
void *rwf_map(rwf_qp *qp, uint32_t rkey, uint64_t raddr, uint32_t length);
/*
 * Calls rwf_map for n queue pairs, each with its own key and address. Sets out[i] to 0 if it returned NULL. Returns the number of
 * addresses that it found.
 */
int rwf_map_all(rwf_qp *const *qps, const uint32_t *rkeys, const uint64_t *raddrs, uint32_t length, int n, uint64_t *out);

/* Returns 1 and an event, or 0 after timeout_ms. It must be called in a loop, because it also accepts passive peers. */
int rwf_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out);

#endif
