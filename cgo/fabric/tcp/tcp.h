/*
 * Provider tcp: its objects, and the functions that its files call of each other.
 * Files, each standing on those before it:
 *
 *	wire     endpoints, hellos and frames as bytes
 *	tls      encryption of a connection
 *	addr     addresses, interfaces, sockets
 *	memory   memory regions
 *	cq       completion queues, and the ends of queue pairs
 *	send     frames out
 *	receive  frames in
 *	connect  the active side of a connection
 *	brake    limits of connections by address
 *	accept   passive peers
 *	qp       queue pairs from creation to their end, and posting
 *	progress polling and waiting, where sockets make progress
 *	device   the device and the operations table
 *
 * Progress is made inside calls only. Where an owner neither polls nor waits, nothing is placed and nothing acknowledged:
 * its peers' sends stay outstanding, but do not fail as long as its host answers.
 *
 * Threads. A queue pair belongs to its owner, except while it waits for its peer: the listener fills the fields that a hello sets,
 * stores the socket in arrived_fd with release order, and wakes the queue. The owner takes the socket from there. Memory regions
 * are found without a lock: a queue counts its calls in busy, which is odd inside one. A deregistration removes the key and then
 * waits for the calls that may have seen it. It holds the device's lock, which no such call takes.
 */
#ifndef RW_TCP_H
#define RW_TCP_H

#include "../base/provider.h"
#include "../base/door.h"
#include "../base/wait.h"
#include "wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
	TCP_MAX_WR = 1 << 14,
	TCP_MAX_VISITORS = 64,
	TCP_RX_BUFFER = 4096, /* holds the largest entry table, and many small frames */
	/* A message longer than a frame is not cut into smaller pieces than this to fill the rest of a window. */
	TCP_LEAST_FRAGMENT = 32 << 10,
};

/* A source of connections: an address of IPv4, or a network of IPv6. */
struct tcp_visitor {
	uint32_t protocol, words[2]; /* Ethernet's number, or 0 if unused; an address of IPv4 is the second word */
	uint64_t paid_ns;            /* its connections are paid for until then */
	uint64_t blocked_ns;         /* blocked until then, or 0 */
};

struct tcp_device {
	struct rwb_door door;        /* the device's lock guards queue pairs that wait for a peer */
	struct tcp_endpoint address; /* the address in endpoints; qp_num and cookie are unused */
	struct tcp_endpoint source;  /* the local address of active connections, if it is set */
	int sndbuf, rcvbuf;          /* if 0, the kernel tunes them */
	uint32_t window;

	struct tcp_visitor visitors[TCP_MAX_VISITORS];
	bool filter_stale; /* the listener's filter is not that of visitors */
};

struct tcp_cq {
	struct rwb_cq base;
	_Atomic uint32_t busy; /* odd while the owner is inside a call */
	bool errors;
	bool due;         /* a queue pair may owe its peer an acknowledgement */
	bool solicited;   /* and its peer may wait for that */
	uint32_t armed;   /* completions that end the next wait */
	uint64_t look_ns; /* the time of the next check of deadlines */
	uint32_t rounds, idle;
	LIST_HEAD(, tcp_qp) qps;
	TAILQ_HEAD(tcp_qps, tcp_qp) ready; /* those with work, in the order of service */
};

/* A frame before its payloads. */
struct tcp_frame {
	struct tcp_head head;
	struct tcp_entry entries[TCP_MAX_ENTRIES];
};

/* Frames out: the send queue's state and the frame on its way. */
struct tcp_out {
	uint64_t framed;   /* requests before it are on their way, those before sends.posted wait */
	uint64_t *ends;    /* for each request on its way, the offset in the stream after its payload */
	uint32_t fragment; /* bytes of the request at framed that earlier frames carried */
	uint32_t imm_sent;
	uint64_t rnr_deadline_ns; /* end of the next send's wait for a posted receive, or 0 */

	uint32_t window;      /* bytes that may be unacknowledged */
	uint32_t peer_posted; /* receives the peer has posted, a running total */
	uint32_t owed;        /* frames without a message that the peer may send as acknowledgements */
	uint64_t peer_placed; /* bytes of the stream that it has placed, a running total */
	uint64_t total;       /* bytes of the stream so far */

	uint32_t frame_bytes; /* limit of a frame's payload */
	int iov_at, iov_count;
	uint64_t first; /* its work requests */
	uint32_t entries;
	bool blocked, dead; /* the socket is full; it failed */
	bool ack_now;       /* a frame must go even if it is empty */
	bool nak_sent;
	struct iovec iov[TCP_MAX_ENTRIES + 1];
	struct tcp_frame frame;
};

/* Frames in: the totals and the frame on its way. */
struct tcp_in {
	uint32_t announced_posted; /* the totals in the last frame */
	uint64_t announced_placed;
	uint32_t idle; /* recent frames without a message or receives */
	bool imm_only;

	bool ready, hung_up;
	bool data_due;   /* data arrived that is not acknowledged */
	bool solicited;  /* and the peer waits for the acknowledgement */
	bool unanswered; /* data arrived since the last data frame went out */
	bool converses;  /* its owner answers data with data, which acknowledges it */

	uint32_t count, entry, done;     /* entries of the frame, the present one, its bytes placed */
	uint32_t refused;                /* the first entry without a receive, refused with refusal */
	enum rwf_wc_status refusal, nak; /* nak goes to the peer after the present frame */
	uint32_t seq;
	uint64_t message_bytes; /* of the present message, in earlier entries */
	uint64_t placed;
	struct tcp_entry entries[TCP_MAX_ENTRIES];
	uint32_t buf_at, buf_len;
	uint8_t buf[TCP_RX_BUFFER];
};

/* Signs of life of the peer's host. */
struct tcp_host {
	uint64_t silent_ns; /* since when an answer is due, or 0 */
	uint64_t placed;    /* in.placed at the last check */
	uint64_t looked_ns; /* time of the last check */
};

struct tcp_qp {
	struct rwb_qp base;
	struct tcp_device *dev;
	struct tcp_cq *cq;
	bool queued; /* in cq->ready */
	LIST_ENTRY(tcp_qp) of_cq;
	TAILQ_ENTRY(tcp_qp) ready;
	int fd;
	_Atomic int arrived_fd; /* the connection, before the owner takes it */
	struct tcp_endpoint peer;
	bool active; /* this is the active side */
	uint8_t cookie[TCP_COOKIE_LEN];
	uint32_t rnr_timeout_ms, ack_timeout_ms;
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

/* Adds the queue pair to its queue's list of queue pairs with work. */
static inline void tcp_qp_ready(struct tcp_qp *qp)
{
	if (qp->queued)
		return;
	qp->queued = true;
	TAILQ_INSERT_TAIL(&qp->cq->ready, qp, ready);
}

RWB_OWN_CALLS(RWB_PROTOTYPE, tcp_)
void tcp_rest_cq(rwf_cq *cq);

/* tls.c */
int tcp_tls_probe(void); /* returns 0, or an error with the remedy if the kernel has no TLS */
/* Encrypts a connection that has carried only hellos. Returns 0, or -1 with errno. */
int tcp_tls_begin(const struct tcp_qp *qp);

/* addr.c */
int tcp_parse_address(const char *text, struct tcp_endpoint *out); /* ADDR, ADDR:PORT or [ADDR6]:PORT */
int tcp_list_addresses(char *buf, size_t cap);
int tcp_socket(struct tcp_device *dev, int family);
bool tcp_owes_answer(int fd, uint32_t *last_answer_ms);
bool tcp_is_wildcard(const struct tcp_endpoint *address);

/* cq.c */
void tcp_qp_end(struct tcp_qp *qp, enum rwf_wc_status status);   /* raises no event, for the owner */
void tcp_qp_error(struct tcp_qp *qp, enum rwf_wc_status status); /* raises one if the queue pair had not failed before */
void tcp_cq_overran(struct tcp_qp *qp);

/* send.c */
void tcp_transmit(struct tcp_qp *qp);
void tcp_acknowledged(struct tcp_qp *qp, uint64_t placed, uint32_t posted);
void tcp_acknowledge(struct tcp_qp *qp); /* sends the totals if the peer needs them */

/* receive.c */
bool tcp_receive(struct tcp_qp *qp); /* returns true if there may be more to read */

/* connect.c */
int tcp_connect(struct tcp_qp *qp, const struct rwf_connect_attr *attr);

/* brake.c, called under accept_lock */
bool tcp_count_connection(struct tcp_device *dev, const struct sockaddr_storage *from,
			  uint64_t now);                                                  /* false: there are too many */
void tcp_uncount_connection(struct tcp_device *dev, const struct sockaddr_storage *from); /* its hello was right */
uint64_t tcp_update_filter(struct tcp_device *dev, uint64_t now,
			   uint64_t until); /* returns the time of the next call, at most until */

/* accept.c */
extern const struct rwb_door_ops tcp_door_ops;

/* qp.c */
void tcp_adopt(struct tcp_qp *qp); /* takes the socket that the listener stored */

#endif
