/* The pure parts of provider ibv: the checks of endpoints, and times as InfiniBand's codes. */
#include "ibv.h"

#include <errno.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(struct rwf_ibv_endpoint) == 36,
	       "the endpoint is as on the wire");

enum { MTU_256 = 1, MTU_4096 = 5, LIMIT_24 = 1 << 24 };

static int sane(const struct rwf_ibv_endpoint *e)
{
	static const uint8_t no_gid[16];

	if (e->zero || e->qpn == 0 || e->qpn >= LIMIT_24 || e->psn >= LIMIT_24 || e->mtu < MTU_256 || e->mtu > MTU_4096)
		return 0;
	if (e->link == RWF_IBV_IB)
		return e->lid != 0 && e->lid <= UINT16_MAX;
	return (e->link == RWF_IBV_ROCE_V1 || e->link == RWF_IBV_ROCE_V2) && e->lid == 0 &&
	       memcmp(e->gid, no_gid, sizeof no_gid) != 0;
}

int rwf_ibv_decode_endpoint(const void *buf, size_t len, struct rwf_ibv_endpoint *e)
{
	static const struct rwf_ibv_endpoint ours = {RWF_IBV_ENDPOINT};

	if (len != sizeof *e)
		return rwf_fail(EINVAL, "endpoint of %zu bytes: one of provider ibv has %zu", len, sizeof *e);
	memcpy(e, buf, sizeof *e);
	if (memcmp(e->magic, ours.magic, sizeof ours.magic) != 0)
		return rwf_fail(EINVAL, "endpoint is not of provider ibv: give both ends the same provider");
	if (e->version != ours.version)
		return rwf_fail(EINVAL, "endpoint of version %u, this program speaks %u: run the same version on both ends",
				e->version, ours.version);
	if (!sane(e))
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
