/*
 * Provider shm: the endpoint and the greeting, little-endian, fixed length, every byte accounted for.
 *
 *   endpoint  0 magic "RWSE" | 4 version u16 | 6 flags u16 (1: by reference) | 8 qp_num u32 | 12 receives u32
 *             | 16 listener's name 16 bytes | 32 the queue pair's cookie 16 bytes
 *   greeting  0 magic "RWSH" | 4 version u16 | 6 zero u16 | 8 cookie called 16 bytes | 24 own cookie 16 bytes
 */
#include "../base/bytes.h"
#include "shm.h"

#include <errno.h>
#include <string.h>

enum { VERSION = 1 };

void shm_encode_endpoint(const struct shm_endpoint *ep, uint8_t out[SHM_ENDPOINT_LEN])
{
	memcpy(out, "RWSE", 4);
	rwb_put16(out + 4, VERSION);
	rwb_put16(out + 6, ep->by_ref);
	rwb_put32(out + 8, ep->qp_num);
	rwb_put32(out + 12, ep->recv_depth);
	memcpy(out + 16, ep->listener, SHM_COOKIE);
	memcpy(out + 32, ep->cookie, SHM_COOKIE);
}

int shm_decode_endpoint(const uint8_t *buf, size_t len, struct shm_endpoint *out)
{
	if (len != SHM_ENDPOINT_LEN || memcmp(buf, "RWSE", 4) != 0)
		return rwf_fail(EINVAL, "connect: %zu bytes that are not an endpoint of provider shm", len);
	if (rwb_get16(buf + 4) != VERSION)
		return rwf_fail(EINVAL, "connect: the peer's shm endpoint has version %u, this is %d: run the same release on both",
				rwb_get16(buf + 4), VERSION);
	out->qp_num = rwb_get32(buf + 8);
	out->recv_depth = rwb_get32(buf + 12);
	out->by_ref = rwb_get16(buf + 6) & 1;
	if (rwb_get16(buf + 6) > 1 || out->recv_depth == 0 || out->recv_depth > SHM_MAX_QP_WR)
		return rwf_fail(EINVAL, "connect: the peer's shm endpoint is out of range: flags 0x%x, %u receives",
				rwb_get16(buf + 6), out->recv_depth);
	memcpy(out->listener, buf + 16, SHM_COOKIE);
	memcpy(out->cookie, buf + 32, SHM_COOKIE);
	return 0;
}

void shm_encode_hello(const uint8_t *to, const uint8_t *from, uint8_t out[SHM_HELLO_LEN])
{
	memcpy(out, "RWSH", 4);
	rwb_put16(out + 4, VERSION);
	rwb_put16(out + 6, 0);
	memcpy(out + 8, to, SHM_COOKIE);
	memcpy(out + 24, from, SHM_COOKIE);
}

int shm_decode_hello(const uint8_t *buf, size_t len, uint8_t *to, uint8_t *from)
{
	if (len != SHM_HELLO_LEN || memcmp(buf, "RWSH", 4) != 0 || rwb_get16(buf + 4) != VERSION || rwb_get16(buf + 6) != 0)
		return -EINVAL;
	memcpy(to, buf + 8, SHM_COOKIE);
	memcpy(from, buf + 24, SHM_COOKIE);
	return 0;
}
