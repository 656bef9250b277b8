/*
 * Provider tcp: the objects and what its files call of each other.
 * Files, each standing on those before it:
 *
 *	wire     endpoints, hellos and frames as bytes
 *	seal     encryption of a connection
 *	addr     addresses, interfaces, sockets
 *	memory   protection domains and memory regions
 *	fail     events, and how a queue pair ends
 *	cq       completion queues
 *	send     frames out
 *	receive  frames in
 *	connect  the active side of a connection
 *	brake    who connects too often
 *	accept   the listener: passive peers and asynchronous events
 *	qp       queue pairs from creation to their end
 *	post     posting
 *	progress polling and waiting, where sockets make progress
 *	device   the device and the operations table
 *
 * Progress is made inside calls only. Where an owner neither polls nor waits, nothing is placed and nothing acknowledged:
 * its peers' sends stay outstanding, but do not fail as long as its host answers.
 *
 * Threads. A queue pair is its owner's alone, but for what the listener hands over: it fills join and what the hello told, stores
 * the socket in arrived_fd with release order and raises the queues' attention flag; the owner takes the socket from there. Memory
 * regions are looked up without a lock: a queue counts its calls in busy (odd inside one), and a deregistration unpublishes
 * the key and then waits until no call that may have seen it still runs.
 */
#ifndef RW_TCP_H
#define RW_TCP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4, POLLRDHUP, pthread_mutex_clocklock */
#endif

#include "../base/provider.h"
#include "../base/queue.h"
#include "../base/wait.h"
#include "seal.h"
#include "wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
	TCP_MAX_QP = 4096,
	TCP_MAX_MR = 1 << 16,
	TCP_MAX_CQ = 1024,
	TCP_MAX_CQE = 1 << 20,
	TCP_MAX_WR = 1 << 14,
	TCP_MAX_INLINE = 512,
	TCP_MAX_HALF_OPEN = 64,
	TCP_MAX_VISITORS = 64,
	TCP_RX_BUFFER = 4096, /* holds the largest entry table, and many small frames */
};

struct tcp_mr {
	_Atomic uint32_t key; /* 0: free; else generation << 16 | index */
	uint16_t generation;  /* of the last key */
	int access;
	struct tcp_pd *pd;
	uint64_t addr, length;
	SLIST_ENTRY(tcp_mr) free;
};

/* A connection that has not yet said whom it wants. */
struct tcp_half {
	int fd; /* -1: unused */
	uint32_t have;
	uint64_t deadline_ns;
	struct sockaddr_storage from;
	uint8_t hello[TCP_HELLO_LEN];
};

/* An address that connections came from. */
struct tcp_visitor {
	uint32_t protocol, words[2]; /* of Ethernet, 0: unused; an address of IPv4 is the second word */
	uint64_t paid_ns;            /* its connections are paid for until then */
	uint64_t kept_ns;            /* kept out until then; 0: it is not */
};

struct tcp_device {
	rwf_device head;
	char name[64];
	struct tcp_endpoint address; /* what endpoints carry; its qp_num and cookie are unused */
	struct tcp_endpoint source;  /* where active connections start, if family is not 0 */
	struct tcp_endpoint peer;    /* where peers are whose endpoints say every address, if family is not 0 */
	uint32_t link_mbps;
	uint32_t sndbuf, rcvbuf; /* 0: the kernel's own tuning */
	uint32_t window;
	int listen_fd;
	int event_fd; /* wakes rwf_get_async_event */

	pthread_mutex_t lock; /* of the queue pair table and the passive side of its queue pairs */
	struct tcp_qp *qps[TCP_MAX_QP];
	uint32_t qp_generation, qp_next;
	uint32_t waiting;        /* passive queue pairs whose peer has not come */
	_Atomic uint32_t events; /* event bits set in queue pairs */

	pthread_mutex_t mr_lock; /* of the memory region table and the list of queues; never taken inside a call counted by busy */
	struct tcp_mr *mrs;
	uint32_t mrs_used; /* how many of them ever were */
	SLIST_HEAD(, tcp_mr) free_mrs;
	LIST_HEAD(, tcp_cq) cqs;
	uint32_t cq_count;
	_Atomic uint32_t pd_count;

	pthread_mutex_t accept_lock;  /* held by the one thread inside rwf_get_async_event */
	uint64_t accept_paused_ns;    /* out of descriptors: new connections wait until then */
	uint64_t unawaited_paused_ns; /* likewise, while no queue pair waits for a peer */
	struct tcp_half half[TCP_MAX_HALF_OPEN];
	struct tcp_visitor visitors[TCP_MAX_VISITORS];
	bool kept_change; /* the kernel keeps out others than it should */
};

struct tcp_pd {
	rwf_pd head;
	_Atomic uint32_t users; /* queue pairs and memory regions */
};

/* A queue pair's membership in a completion queue. */
struct tcp_link {
	struct tcp_qp *qp;
	struct tcp_cq *cq;
	bool queued; /* in cq->ready */
	LIST_ENTRY(tcp_link) all;
	TAILQ_ENTRY(tcp_link) ready;
};

struct tcp_cq {
	rwf_cq head;
	LIST_ENTRY(tcp_cq) all;
	_Atomic uint32_t busy;      /* odd while the owner is inside a call */
	_Atomic uint32_t attention; /* another thread changed the state of a queue pair */
	_Atomic uint32_t woken;     /* the next wait is to return */
	int epoll_fd, wake_fd;
	struct rwb_ring ring;
	bool overrun, errors;
	bool due;         /* some queue pair may owe its peer an acknowledgement */
	uint32_t armed;   /* completions that end the next wait */
	uint64_t look_ns; /* when to check the deadlines of its queue pairs */
	uint32_t rounds, idle;
	LIST_HEAD(, tcp_link) links;
	TAILQ_HEAD(tcp_links, tcp_link) ready; /* queue pairs with work, served in turn */
};

/* How a passive queue pair meets its peer: under the device's lock until arrived_fd is stored. */
struct tcp_join {
	struct tcp_endpoint peer;
	uint64_t deadline_ns;
	bool waiting;
	_Atomic int arrived_fd;
};

/* Frames out: the send queue and the frame on its way. */
struct tcp_out {
	/* Requests before acked await polling, those before framed are on their way, those before posted wait. */
	struct rwb_sends sends;
	uint64_t acked, framed;
	uint64_t *ends;    /* of each request on its way: the offset in the stream just after its payload */
	uint32_t fragment; /* bytes of request framed that went in earlier frames */
	uint32_t imm_sent;
	uint64_t rnr_deadline_ns; /* when the next send will have waited too long for a posted receive; 0: it does not wait */
	enum rwf_wc_status error; /* of the oldest outstanding send, once failed */

	uint32_t window;      /* bytes that the peer takes before it has acknowledged them */
	uint32_t peer_posted; /* receives the peer has posted, a running total */
	uint64_t peer_placed; /* bytes of the stream that it has placed, a running total */
	uint64_t total;       /* bytes of the stream so far */

	uint32_t frame_bytes; /* most payload in one */
	int iov_at, iov_count;
	uint64_t first; /* its work requests */
	uint32_t entries;
	bool blocked, dead; /* the socket is full; it is gone */
	bool ack_now;       /* a frame is to go even if it is empty */
	bool nak_sent;
	struct iovec iov[TCP_MAX_ENTRIES + 1];
	uint8_t table[TCP_HEAD_LEN + TCP_MAX_ENTRIES * TCP_ENTRY_LEN];
};

/* Frames in: the receive queue and the frame on its way. */
struct tcp_in {
	/* Receives before used await polling, those before posted are posted. */
	uint64_t *wr_ids;
	uint32_t limit, mask, freed, used;
	_Atomic uint32_t posted;
	uint32_t told_posted; /* what the peer knows of posted and of placed */
	uint64_t told_placed;

	bool ready, hung_up;
	bool data_due;  /* data arrived that the peer was not notified of */
	bool heard;     /* data arrived since the last of ours went out */
	bool converses; /* its owner answers data with data, which will carry the acknowledgement */

	uint32_t count, entry, done;     /* entries of the frame, the present one, its bytes placed */
	uint32_t refused;                /* the first entry that no receive is left for, refused with refusal */
	enum rwf_wc_status refusal, nak; /* nak: what to refuse the peer with, once the frame going out is complete */
	uint32_t seq;
	uint64_t message_bytes; /* of the present message, in earlier entries */
	uint64_t placed;
	struct tcp_entry entries[TCP_MAX_ENTRIES];
	uint32_t buf_at, buf_len;
	uint8_t buf[TCP_RX_BUFFER];
};

/* Whether the peer's host is alive. */
struct tcp_host {
	uint64_t silent_ns; /* since when it has been owing an answer; 0: it is not */
	uint64_t placed;    /* in.placed at the last check */
};

struct tcp_qp {
	rwf_qp head;
	struct tcp_device *dev;
	struct tcp_cq *send_cq, *recv_cq;
	struct tcp_link links[2]; /* the second is used if the two queues differ */
	int fd;
	struct tcp_seal *seal; /* NULL: nothing is encrypted */
	uint8_t cookie[TCP_COOKIE_LEN];
	_Atomic uint32_t event_bits; /* 1 << enum rwf_async_type */
	uint32_t rnr_timeout_ms, ack_timeout_ms;
	struct tcp_join join;
	struct tcp_host host;
	struct tcp_out out;
	struct tcp_in in;
};

static inline void tcp_enter(struct tcp_cq *cq)
{
	atomic_fetch_add(&cq->busy, 1);
}

static inline void tcp_leave(struct tcp_cq *cq)
{
	atomic_fetch_add_explicit(&cq->busy, 1, memory_order_release);
}

/* Lets the queue serve the queue pair in its next turn. */
static inline void tcp_cq_ready(struct tcp_link *link)
{
	if (link->queued)
		return;
	link->queued = true;
	TAILQ_INSERT_TAIL(&link->cq->ready, link, ready);
}

/* addr.c */
int tcp_parse_address(const char *text, struct tcp_endpoint *out); /* ADDR, ADDR:PORT or [ADDR6]:PORT */
int tcp_list_addresses(char *buf, size_t cap);
uint32_t tcp_link_mbps(const struct tcp_endpoint *address);
int tcp_socket(struct tcp_device *dev, int family);
int tcp_no_delay(int fd);
bool tcp_owes_answer(int fd, uint32_t *last_answer_ms);
bool tcp_is_wildcard(const struct tcp_endpoint *address);

/* memory.c */
int tcp_alloc_pd(rwf_device *dev, rwf_pd **out);
int tcp_dealloc_pd(rwf_pd *pd);
int tcp_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out);
int tcp_dereg_mr(rwf_pd *pd, uint32_t lkey);
bool tcp_mr_allows(struct tcp_qp *qp, uint32_t key, uint64_t addr, uint64_t length, int access);

/* fail.c */
void tcp_poke_listener(struct tcp_device *dev);
void tcp_raise(struct tcp_qp *qp, enum rwf_async_type type);
void tcp_qp_end(struct tcp_qp *qp, enum rwf_wc_status status);   /* without an event: the owner asked for it */
void tcp_qp_error(struct tcp_qp *qp, enum rwf_wc_status status); /* with one, unless it has ended before */

/* cq.c */
int tcp_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out);
int tcp_destroy_cq(rwf_cq *cq);
int tcp_wake_cq(rwf_cq *cq);
void tcp_cq_attach(struct tcp_cq *cq, struct tcp_link *link);
void tcp_cq_detach(struct tcp_link *link);
int tcp_cq_watch(struct tcp_link *link, int fd);
void tcp_cq_attention(struct tcp_cq *cq);
bool tcp_cq_full(const struct tcp_cq *cq);
void tcp_cq_push(struct tcp_cq *cq, struct tcp_qp *qp, const struct rwf_wc *wc, uint64_t done);

/* send.c */
void tcp_transmit(struct tcp_qp *qp);
void tcp_acknowledged(struct tcp_qp *qp, uint64_t placed, uint32_t posted);
void tcp_acknowledge(struct tcp_qp *qp); /* notifies the peer of what it does not know yet */

/* receive.c */
bool tcp_receive(struct tcp_qp *qp); /* true: there may be more to read */

/* connect.c */
int tcp_connect(struct tcp_qp *qp, struct tcp_endpoint *peer, const struct rwf_connect_attr *attr);

/* brake.c: for the thread that holds accept_lock */
bool tcp_may_enter(struct tcp_device *dev, const struct sockaddr_storage *from, uint64_t now); /* counts a connection */
void tcp_entered(struct tcp_device *dev, const struct sockaddr_storage *from);                 /* it came to something */
uint64_t tcp_keep_out(struct tcp_device *dev, uint64_t now, uint64_t until); /* returns when to call it again, at most until */

/* accept.c */
int tcp_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out);

/* qp.c */
int tcp_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out);
int tcp_destroy_qp(rwf_qp *qp);
int tcp_qp_endpoint(rwf_qp *qp, void *buf, size_t cap);
int tcp_connect_qp(rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr);
int tcp_fail_qp(rwf_qp *qp);
void tcp_adopt(struct tcp_qp *qp); /* takes the socket the listener left */

/* post.c */
int tcp_post_send(rwf_qp *qp, const struct rwf_send_wr *wr, int n);
int tcp_post_recv(rwf_qp *qp, uint64_t wr_id, int n);

/* progress.c */
int tcp_poll_cq(rwf_cq *cq, struct rwf_wc *wc, int n);
int tcp_req_notify_cq(rwf_cq *cq, uint32_t count);
int tcp_wait_cq(rwf_cq *cq, int64_t timeout_us);

#endif
