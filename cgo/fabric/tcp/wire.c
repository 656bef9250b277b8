#include "wire.h"

#include "../base/provider.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

static const uint32_t hello_magic = 0x48545752; /* "RWTH" */

int tcp_endpoint_decode(struct tcp_endpoint *ep, const void *buf, size_t len)
{
	static const uint8_t zero[12];

	if (len != sizeof *ep)
		return rwf_fail(EINVAL, "peer endpoint: %zu bytes, provider tcp's has %zu: is the peer using another provider?",
				len, sizeof *ep);
	memcpy(ep, buf, sizeof *ep);
	if (ep->magic != TCP_ENDPOINT_MAGIC)
		return rwf_fail(EINVAL, "peer endpoint: it is not provider tcp's: is the peer using another provider?");
	if (ep->version != TCP_WIRE_VERSION)
		return rwf_fail(EINVAL, "peer endpoint: version %u, this side speaks %d: run the same release on both", ep->version,
				TCP_WIRE_VERSION);
	if ((ep->ip != 4 && ep->ip != 6) || ep->qp_num == 0 || ep->port == 0 || ep->encrypt > 1)
		return rwf_fail(EINVAL, "peer endpoint: damaged (address family %u, queue pair 0x%x, port %u)", ep->ip, ep->qp_num,
				ep->port);
	if (ep->ip == 4 && memcmp(ep->addr + 4, zero, sizeof zero) != 0)
		return rwf_fail(EINVAL, "peer endpoint: damaged (bytes after an IPv4 address)");
	return 0;
}

int tcp_family(const struct tcp_endpoint *ep)
{
	return ep->ip == 6 ? AF_INET6 : AF_INET;
}

socklen_t tcp_endpoint_sockaddr(const struct tcp_endpoint *ep, struct sockaddr_storage *out)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
	struct sockaddr_in *in = (struct sockaddr_in *)out;

	memset(out, 0, sizeof *out);
	out->ss_family = (sa_family_t)tcp_family(ep);
	in->sin_port = htons(ep->port); /* at the same place in both */
	if (ep->ip == 6) {
		memcpy(&in6->sin6_addr, ep->addr, sizeof in6->sin6_addr);
		return sizeof *in6;
	}
	memcpy(&in->sin_addr, ep->addr, sizeof in->sin_addr);
	return sizeof *in;
}

/* Computes the proof that a hello's sender knows the cookie of its queue pair. The cookie itself does not travel. */
static void prove(struct tcp_hello bare, const uint8_t cookie[TCP_COOKIE_LEN], uint8_t proof[TCP_DIGEST_LEN])
{
	memset(bare.proof, 0, sizeof bare.proof);
	tcp_hmac(cookie, TCP_COOKIE_LEN, (const uint8_t *)&bare, sizeof bare, proof);
}

void tcp_hello_seal(struct tcp_hello *h, const uint8_t cookie[TCP_COOKIE_LEN])
{
	uint8_t proof[TCP_DIGEST_LEN];

	h->magic = hello_magic;
	h->version = TCP_WIRE_VERSION;
	prove(*h, cookie, proof);
	memcpy(h->proof, proof, sizeof h->proof);
}

bool tcp_hello_valid(const struct tcp_hello *h)
{
	return h->magic == hello_magic && h->version == TCP_WIRE_VERSION &&
	       (h->kind == TCP_HELLO_REQUEST || h->kind == TCP_HELLO_ACCEPT) && h->window >= TCP_MIN_WINDOW &&
	       h->window <= TCP_MAX_WINDOW;
}

bool tcp_hello_proven(const struct tcp_hello *h, const uint8_t cookie[TCP_COOKIE_LEN])
{
	uint8_t proof[TCP_DIGEST_LEN];
	volatile uint8_t differs = 0;

	prove(*h, cookie, proof);
	for (size_t i = 0; i < sizeof h->proof; i++)
		differs |= proof[i] ^ h->proof[i];
	return !differs;
}

bool tcp_head_valid(const struct tcp_head *h)
{
	return h->magic == TCP_HEAD_MAGIC && h->zero == 0 &&
	       ((h->kind == TCP_DATA && h->count <= TCP_MAX_ENTRIES) || (h->kind == TCP_NAK && h->count == 1));
}

/* A fragment without bytes before the last, or an immediate before the last, means nothing. */
bool tcp_entry_valid(const struct tcp_entry *e)
{
	return !(e->flags & ~(uint64_t)(TCP_ENTRY_LAST | TCP_ENTRY_IMM | TCP_ENTRY_SOLICITED)) &&
	       (e->flags & TCP_ENTRY_LAST || (e->length && !(e->flags & TCP_ENTRY_IMM)));
}
