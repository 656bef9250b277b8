/*
 * The bytes of provider tcp on the wire, little-endian as in memory, and their strict checks.
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
	TCP_PROOF_LEN = 16,
	TCP_WIRE_VERSION = 3,
	TCP_ENDPOINT_MAGIC = 0x45545752, /* "RWTE" */
	TCP_HEAD_MAGIC = 0xa7,
	TCP_DIGEST_LEN = 32,
	TCP_MAX_ENTRIES = 32,
	TCP_MIN_WINDOW = 64 << 10,
	TCP_MAX_WINDOW = 1 << 30,
};

/* The address of a queue pair, and the secret that admits its peer. */
struct tcp_endpoint {
	uint32_t magic;
	uint16_t version;
	uint16_t ip; /* 4 or 6, or 0 without an address */
	uint32_t qp_num;
	uint16_t port;
	uint16_t encrypt; /* 1 if its connection must be encrypted */
	uint8_t addr[16]; /* network order; an address of IPv4 is the first four, before zeroes */
	uint8_t cookie[TCP_COOKIE_LEN];
};

enum tcp_hello_kind { TCP_HELLO_REQUEST = 1, TCP_HELLO_ACCEPT = 2 };

struct tcp_hello {
	uint32_t magic;
	uint16_t version, kind;
	uint32_t to_qp, from_qp;
	uint8_t proof[TCP_PROOF_LEN];
	uint32_t window; /* bytes that the peer may have unacknowledged */
	uint32_t posted; /* receives posted so far */
};

enum tcp_kind { TCP_DATA = 1, TCP_NAK = 2 };

struct tcp_head {
	uint8_t magic;
	uint8_t kind;
	uint8_t count; /* entries; a data frame of none only acknowledges, a NAK has one */
	uint8_t zero;
	uint32_t posted; /* receives posted, a running total */
	uint64_t placed; /* bytes placed, a running total */
};

enum tcp_entry_flags { TCP_ENTRY_LAST = 1, TCP_ENTRY_IMM = 2, TCP_ENTRY_SOLICITED = 4 };

struct tcp_entry {
	uint64_t raddr;
	uint32_t rkey;
	uint32_t length;
	uint32_t imm; /* in a NAK: the enum rwf_wc_status of the refused message */
	uint32_t seq; /* number of the message, from 0 */
	uint64_t flags;
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(struct tcp_endpoint) == 48 && sizeof(struct tcp_hello) == 40 &&
		       sizeof(struct tcp_head) == 16 && sizeof(struct tcp_entry) == 32,
	       "structures are as on the wire");

int tcp_endpoint_decode(struct tcp_endpoint *ep, const void *buf, size_t len);
int tcp_family(const struct tcp_endpoint *ep); /* AF_INET or AF_INET6 */
socklen_t tcp_endpoint_sockaddr(const struct tcp_endpoint *ep, struct sockaddr_storage *out);

/* Computes an HMAC with SHA-256. Neither the key nor the message may have more than 64 bytes. */
void tcp_hmac(const uint8_t *key, size_t key_len, const uint8_t *message, size_t len, uint8_t out[TCP_DIGEST_LEN]);

/* Sets magic, version and proof. cookie is that of the queue pair that the hello is sent to. */
void tcp_hello_seal(struct tcp_hello *h, const uint8_t cookie[TCP_COOKIE_LEN]);
bool tcp_hello_valid(const struct tcp_hello *h);
bool tcp_hello_proven(const struct tcp_hello *h, const uint8_t cookie[TCP_COOKIE_LEN]);

bool tcp_head_valid(const struct tcp_head *h);
bool tcp_entry_valid(const struct tcp_entry *e);

#endif
