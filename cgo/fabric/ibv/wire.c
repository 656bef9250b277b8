/* The pure parts of provider ibv: endpoints as bytes, and times as InfiniBand's codes. */
#include "ibv.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

static const uint8_t magic[4] = {'R', 'w', 'i', 'b'};
enum { VERSION = 1, MTU_256 = 1, MTU_4096 = 5, LIMIT_24 = 1 << 24 };

static void put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof v);
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

/* magic[4] version link mtu 0 qpn[4] psn[4] lid[2] 0[2] gid[16], little-endian */
void rwf_ibv_encode_endpoint(const struct rwf_ibv_endpoint *e, uint8_t buf[RWF_IBV_ENDPOINT_BYTES])
{
	memset(buf, 0, RWF_IBV_ENDPOINT_BYTES);
	memcpy(buf, magic, sizeof magic);
	buf[4] = VERSION;
	buf[5] = e->link;
	buf[6] = e->mtu;
	put32(buf + 8, e->qpn);
	put32(buf + 12, e->psn);
	put32(buf + 16, e->lid);
	memcpy(buf + 20, e->gid, sizeof e->gid);
}

static int sane(const struct rwf_ibv_endpoint *e)
{
	static const uint8_t no_gid[16];

	if (e->qpn == 0 || e->qpn >= LIMIT_24 || e->psn >= LIMIT_24 || e->mtu < MTU_256 || e->mtu > MTU_4096)
		return 0;
	if (e->link == RWF_IBV_IB)
		return e->lid != 0;
	return (e->link == RWF_IBV_ROCE_V1 || e->link == RWF_IBV_ROCE_V2) && e->lid == 0 &&
	       memcmp(e->gid, no_gid, sizeof no_gid) != 0;
}

int rwf_ibv_decode_endpoint(const void *buf, size_t len, struct rwf_ibv_endpoint *e)
{
	const uint8_t *p = buf;

	if (len != RWF_IBV_ENDPOINT_BYTES)
		return rwf_fail(EINVAL, "endpoint of %zu bytes: one of provider ibv has %d", len, RWF_IBV_ENDPOINT_BYTES);
	if (memcmp(p, magic, sizeof magic) != 0)
		return rwf_fail(EINVAL, "endpoint is not of provider ibv: give both ends the same provider");
	if (p[4] != VERSION)
		return rwf_fail(EINVAL, "endpoint of version %u, this program speaks %d: run the same version on both ends", p[4],
				VERSION);
	*e = (struct rwf_ibv_endpoint){
		.qpn = get32(p + 8), .psn = get32(p + 12), .lid = (uint16_t)get32(p + 16), .link = p[5], .mtu = p[6]};
	memcpy(e->gid, p + 20, sizeof e->gid);
	if (p[7] != 0 || get32(p + 16) > UINT16_MAX || !sane(e))
		return rwf_fail(EINVAL, "endpoint is damaged: link %u, mtu %u, qpn 0x%x, psn 0x%x", e->link, e->mtu, e->qpn,
				e->psn);
	return 0;
}

/*
 * A code t is 4.096 us * 2^t. 0 would mean for ever, and 31 is the largest. All tries together last at least ms, so that an
 * outage of that length is survived. Hardware may take up to four times as long.
 */
uint8_t rwf_ibv_ack_timeout(uint32_t ms, uint8_t retry)
{
	uint8_t code = 1;

	while (code < 31 && (UINT64_C(4096) << code) * (retry + 1u) < ms * UINT64_C(1000000))
		code++;
	return code;
}

/* InfiniBand Architecture, volume 1, table 45: RNR NAK timer codes, in units of 10 us. Code 0 is the longest. */
uint8_t rwf_ibv_rnr_timer(uint32_t ms, uint8_t retries)
{
	static const uint32_t units[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
					   48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
					   2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

	for (uint8_t code = 1; code < 32; code++)
		if (UINT64_C(10) * units[code] * retries >= ms * UINT64_C(1000))
			return code;
	return 0;
}
