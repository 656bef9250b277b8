/* The roofline of provider tcp: a bare socket loop on loopback. */
#ifndef RW_ROOFLINE_TCP_H
#define RW_ROOFLINE_TCP_H

#include <stdint.h>

struct rwf_tcp_roofline {
	uint32_t connections;
	uint32_t hubs;    /* threads at the near end, the connections dealt out among them */
	uint32_t peers;   /* threads at the far end, likewise */
	uint32_t block;   /* bytes to one send or recv */
	uint64_t span;    /* bytes of memory each connection walks through in each direction; at least block */
	uint64_t bytes;   /* each way, over all connections; at least one per connection */
	uint32_t sockbuf; /* bytes of each socket buffer; 0: the kernel's own tuning */
	uint32_t timeout_ms;
};

/* Moves the bytes both ways at once; returns nanoseconds, or a negative errno with rwf_last_error(). */
int64_t rwf_tcp_roofline(const struct rwf_tcp_roofline *r);

#endif
