#include "wire.h"

#include "hmac.h"

#include "../base/bytes.h"
#include "../base/provider.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

static const uint32_t endpoint_magic = 0x45545752; /* "RWTE" */
static const uint32_t hello_magic = 0x48545752;    /* "RWTH" */
enum { WIRE_VERSION = 2, HEAD_MAGIC = 0xa7, PROOF_AT = 16, PROOF_LEN = 16 };

/* Layout: magic 4, version 2, family 2 (4 or 6), qp number 4, port 2, flags 2 (1: encrypted), address 16, cookie 16. */
int tcp_endpoint_encode(const struct tcp_endpoint *ep, void *buf, size_t cap)
{
	uint8_t *p = buf;

	if (cap < TCP_ENDPOINT_LEN)
		return rwf_fail(ENOSPC, "endpoint: %zu bytes of room, it takes %d", cap, TCP_ENDPOINT_LEN);
	p = rwb_put32(p, endpoint_magic);
	p = rwb_put16(p, WIRE_VERSION);
	p = rwb_put16(p, ep->family == AF_INET6 ? 6 : 4);
	p = rwb_put32(p, ep->qp_num);
	p = rwb_put16(p, ep->port);
	p = rwb_put16(p, ep->encrypt);
	memcpy(p, ep->addr, sizeof ep->addr);
	memcpy(p + sizeof ep->addr, ep->cookie, sizeof ep->cookie);
	return TCP_ENDPOINT_LEN;
}

int tcp_endpoint_decode(struct tcp_endpoint *ep, const void *buf, size_t len)
{
	static const uint8_t zero[12];
	const uint8_t *p = buf;

	if (len != TCP_ENDPOINT_LEN)
		return rwf_fail(EINVAL, "peer endpoint: %zu bytes, provider tcp's has %d: is the peer using another provider?", len,
				TCP_ENDPOINT_LEN);
	if (rwb_get32(p) != endpoint_magic)
		return rwf_fail(EINVAL, "peer endpoint: it is not provider tcp's: is the peer using another provider?");
	if (rwb_get16(p + 4) != WIRE_VERSION)
		return rwf_fail(EINVAL, "peer endpoint: version %u, this side speaks %d: run the same release on both",
				rwb_get16(p + 4), WIRE_VERSION);
	switch (rwb_get16(p + 6)) {
	case 4:
		ep->family = AF_INET;
		break;
	case 6:
		ep->family = AF_INET6;
		break;
	default:
		return rwf_fail(EINVAL, "peer endpoint: address family %u, it must be 4 or 6", rwb_get16(p + 6));
	}
	ep->qp_num = rwb_get32(p + 8);
	ep->port = rwb_get16(p + 12);
	ep->encrypt = rwb_get16(p + 14) == 1;
	if (ep->qp_num == 0 || ep->port == 0 || rwb_get16(p + 14) > 1)
		return rwf_fail(EINVAL, "peer endpoint: damaged (queue pair 0x%x, port %u)", ep->qp_num, ep->port);
	memcpy(ep->addr, p + 16, sizeof ep->addr);
	if (ep->family == AF_INET && memcmp(ep->addr + 4, zero, sizeof zero) != 0)
		return rwf_fail(EINVAL, "peer endpoint: damaged (bytes after an IPv4 address)");
	memcpy(ep->cookie, p + 32, sizeof ep->cookie);
	return 0;
}

socklen_t tcp_endpoint_sockaddr(const struct tcp_endpoint *ep, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof *out);
	if (ep->family == AF_INET6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(ep->port);
		memcpy(&in6->sin6_addr, ep->addr, 16);
		return sizeof *in6;
	}
	struct sockaddr_in *in = (struct sockaddr_in *)out;

	in->sin_family = AF_INET;
	in->sin_port = htons(ep->port);
	memcpy(&in->sin_addr, ep->addr, 4);
	return sizeof *in;
}

/* What proves that a hello's sender knows the cookie of the queue pair that it is sent to: the cookie itself does not travel. */
static void prove(const uint8_t hello[TCP_HELLO_LEN], const uint8_t cookie[TCP_COOKIE_LEN], uint8_t proof[TCP_DIGEST_LEN])
{
	uint8_t bare[TCP_HELLO_LEN];

	memcpy(bare, hello, sizeof bare);
	memset(bare + PROOF_AT, 0, PROOF_LEN);
	tcp_hmac(cookie, TCP_COOKIE_LEN, bare, sizeof bare, proof);
}

bool tcp_hello_proven(const uint8_t hello[TCP_HELLO_LEN], const uint8_t cookie[TCP_COOKIE_LEN])
{
	uint8_t proof[TCP_DIGEST_LEN];
	volatile uint8_t differs = 0;

	prove(hello, cookie, proof);
	for (int i = 0; i < PROOF_LEN; i++)
		differs |= proof[i] ^ hello[PROOF_AT + i];
	return !differs;
}

/* Layout: magic 4, version 2, kind 2, to 4, from 4, proof 16, window 4, posted 4. */
void tcp_hello_encode(const struct tcp_hello *h, const uint8_t cookie[TCP_COOKIE_LEN], uint8_t buf[TCP_HELLO_LEN])
{
	uint8_t proof[TCP_DIGEST_LEN];
	uint8_t *p = buf;

	p = rwb_put32(p, hello_magic);
	p = rwb_put16(p, WIRE_VERSION);
	p = rwb_put16(p, h->kind);
	p = rwb_put32(p, h->to_qp);
	p = rwb_put32(p, h->from_qp);
	p = rwb_put32(p + PROOF_LEN, h->window);
	rwb_put32(p, h->posted);
	prove(buf, cookie, proof);
	memcpy(buf + PROOF_AT, proof, PROOF_LEN);
}

int tcp_hello_decode(struct tcp_hello *h, const uint8_t buf[TCP_HELLO_LEN])
{
	if (rwb_get32(buf) != hello_magic || rwb_get16(buf + 4) != WIRE_VERSION)
		return -EINVAL;
	h->kind = rwb_get16(buf + 6);
	h->to_qp = rwb_get32(buf + 8);
	h->from_qp = rwb_get32(buf + 12);
	h->window = rwb_get32(buf + 32);
	h->posted = rwb_get32(buf + 36);
	if (h->kind != TCP_HELLO_REQUEST && h->kind != TCP_HELLO_ACCEPT)
		return -EINVAL;
	if (h->window < TCP_MIN_WINDOW || h->window > TCP_MAX_WINDOW)
		return -EINVAL;
	return 0;
}

/* Layout: magic 1, kind 1, count 1, zero 1, posted 4, placed 8. */
void tcp_head_encode(const struct tcp_head *h, uint8_t buf[TCP_HEAD_LEN])
{
	buf[0] = HEAD_MAGIC;
	buf[1] = h->kind;
	buf[2] = h->count;
	buf[3] = 0;
	rwb_put64(rwb_put32(buf + 4, h->posted), h->placed);
}

int tcp_head_decode(struct tcp_head *h, const uint8_t buf[TCP_HEAD_LEN])
{
	if (buf[0] != HEAD_MAGIC || buf[3] != 0)
		return -EINVAL;
	h->kind = buf[1];
	h->count = buf[2];
	h->posted = rwb_get32(buf + 4);
	h->placed = rwb_get64(buf + 8);
	if (h->kind == TCP_DATA)
		return h->count <= TCP_MAX_ENTRIES ? 0 : -EINVAL;
	return h->kind == TCP_NAK && h->count == 1 ? 0 : -EINVAL;
}

/* Layout: target 8, key 4, length 4, immediate 4, sequence 4, flags 1, zero 7. */
void tcp_entry_encode(const struct tcp_entry *e, uint8_t buf[TCP_ENTRY_LEN])
{
	uint8_t *p = buf;

	p = rwb_put64(p, e->raddr);
	p = rwb_put32(p, e->rkey);
	p = rwb_put32(p, e->length);
	p = rwb_put32(p, e->imm);
	p = rwb_put32(p, e->seq);
	rwb_put64(p, e->flags);
}

int tcp_entry_decode(struct tcp_entry *e, const uint8_t buf[TCP_ENTRY_LEN])
{
	uint64_t flags = rwb_get64(buf + 24);

	e->raddr = rwb_get64(buf);
	e->rkey = rwb_get32(buf + 8);
	e->length = rwb_get32(buf + 12);
	e->imm = rwb_get32(buf + 16);
	e->seq = rwb_get32(buf + 20);
	e->flags = (uint8_t)flags;
	if (flags & ~(uint64_t)(TCP_ENTRY_LAST | TCP_ENTRY_IMM))
		return -EINVAL;
	/* A fragment without bytes before the last, or an immediate before the last, means nothing. */
	if (!(flags & TCP_ENTRY_LAST) && (e->length == 0 || flags & TCP_ENTRY_IMM))
		return -EINVAL;
	return 0;
}
