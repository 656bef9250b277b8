/*
 * What provider tcp puts on the wire: pure encoders and strict decoders, little-endian throughout.
 *
 * A connection carries one hello in each direction and then frames. A frame is a head, count entries, and then the payloads
 * of its entries one after the other. A receiver that has the entries takes all payloads with one system call, straight
 * into their targets. A message longer than a frame goes as several entries, the last of which is marked.
 *
 * Every head carries two running totals, so any frame is an acknowledgement: how many bytes of the peer's stream (without
 * the hello) have been placed, and how many receives have been posted. A send is complete when the placed total passes its
 * last byte. A write with immediate goes out only against a posted receive.
 */
#ifndef RW_TCP_WIRE_H
#define RW_TCP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
	TCP_COOKIE_LEN = 16,
	TCP_ENDPOINT_LEN = 48,
	TCP_HELLO_LEN = 40,
	TCP_HEAD_LEN = 16,
	TCP_ENTRY_LEN = 32,
	TCP_MAX_ENTRIES = 32,
	TCP_MIN_WINDOW = 64 << 10,
	TCP_MAX_WINDOW = 1 << 30,
};

/* Where a queue pair is reached, and the secret that admits its peer. */
struct tcp_endpoint {
	uint32_t qp_num;
	uint16_t family; /* AF_INET or AF_INET6 */
	uint16_t port;
	bool encrypt;     /* its connection is to be encrypted */
	uint8_t addr[16]; /* network order; AF_INET uses the first four */
	uint8_t cookie[TCP_COOKIE_LEN];
};

enum tcp_hello_kind { TCP_HELLO_REQUEST = 1, TCP_HELLO_ACCEPT = 2 };

struct tcp_hello {
	uint16_t kind;
	uint32_t to_qp, from_qp;
	uint32_t window; /* bytes the peer may have on the way before they are acknowledged */
	uint32_t posted; /* receives posted so far */
};

enum tcp_kind { TCP_DATA = 1, TCP_NAK = 2 };

struct tcp_head {
	uint8_t kind;
	uint8_t count;   /* entries; a data frame of none only acknowledges, a NAK has one */
	uint32_t posted; /* receives posted, a running total */
	uint64_t placed; /* bytes placed, a running total */
};

enum tcp_entry_flags { TCP_ENTRY_LAST = 1, TCP_ENTRY_IMM = 2 };

struct tcp_entry {
	uint64_t raddr;
	uint32_t rkey;
	uint32_t length;
	uint32_t imm; /* in a NAK: the enum rwf_wc_status of the refused message */
	uint32_t seq; /* number of the message, from 0 */
	uint8_t flags;
};

int tcp_endpoint_encode(const struct tcp_endpoint *ep, void *buf, size_t cap);
int tcp_endpoint_decode(struct tcp_endpoint *ep, const void *buf, size_t len);
socklen_t tcp_endpoint_sockaddr(const struct tcp_endpoint *ep, struct sockaddr_storage *out);

/* cookie is that of the queue pair that the hello is sent to. */
void tcp_hello_encode(const struct tcp_hello *h, const uint8_t cookie[TCP_COOKIE_LEN], uint8_t buf[TCP_HELLO_LEN]);
bool tcp_hello_proven(const uint8_t hello[TCP_HELLO_LEN], const uint8_t cookie[TCP_COOKIE_LEN]);
int tcp_hello_decode(struct tcp_hello *h, const uint8_t buf[TCP_HELLO_LEN]);

void tcp_head_encode(const struct tcp_head *h, uint8_t buf[TCP_HEAD_LEN]);
int tcp_head_decode(struct tcp_head *h, const uint8_t buf[TCP_HEAD_LEN]);

void tcp_entry_encode(const struct tcp_entry *e, uint8_t buf[TCP_ENTRY_LEN]);
int tcp_entry_decode(struct tcp_entry *e, const uint8_t buf[TCP_ENTRY_LEN]);

#endif
