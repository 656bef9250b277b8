/*
 * Provider ibv: libibverbs, loaded at run time. device: as in ibv_devices(1), "" for the first with an active port.
 *
 * Options of rwf_open:
 *   port           port number; default the first active one
 *   gid            index in the GID table; default the best entry that takes an address handle: RoCE v2 over IPv4, RoCE v2 over
 *                  IPv6, RoCE v1
 *   tc, sl         traffic class (its upper 6 bits are the DSCP) and service level; default 0
 *   timeout, retry ibv_modify_qp(3)'s codes, in place of those computed from ack_timeout_ms. The RNR timer is the receiver's to
 *                  choose: give both ends the same rnr_timeout_ms
 *   arrival        0: a passive queue pair is established at once, for a device whose query does not report the receive PSN
 *
 * Stricter than the contract asks: a queue pair whose sends and receives could overrun its completion queue is refused
 * (-EINVAL), because soft-RoCE loses such completions and hardware loses the queue.
 */
#ifndef RW_FABRIC_IBV_H
#define RW_FABRIC_IBV_H

#include "../base/fabric.h"

enum rwf_ibv_link { RWF_IBV_IB = 1, RWF_IBV_ROCE_V1 = 2, RWF_IBV_ROCE_V2 = 3 };

/* The information about a queue pair that its peer needs, as it travels: little-endian. */
struct rwf_ibv_endpoint {
	uint8_t magic[4], version;
	uint8_t link; /* enum rwf_ibv_link */
	uint8_t mtu;  /* enum ibv_mtu */
	uint8_t zero;
	uint32_t qpn, psn; /* 24 bits each */
	uint32_t lid;      /* 16 bits; InfiniBand only */
	uint8_t gid[16];
};
#define RWF_IBV_ENDPOINT .magic = {'R', 'w', 'i', 'b'}, .version = 1

/* Returns 0, or -EINVAL with the reason. */
int rwf_ibv_decode_endpoint(const void *buf, size_t len, struct rwf_ibv_endpoint *e);

/* Returns the code of ibv_modify_qp(3)'s timeout with which retry + 1 attempts last about so long: 2/3 to 4/3 of it. */
uint8_t rwf_ibv_ack_timeout(uint32_t ms, uint8_t retry);
/* Returns the code of the shortest RNR timer with which so many retries last at least ms. */
uint8_t rwf_ibv_rnr_timer(uint32_t ms, uint8_t retries);

#endif
