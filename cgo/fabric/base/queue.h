/* A queue pair's send queue and a completion queue's ring, as software providers keep them. Counters run freely from 0. */
#ifndef RW_FABRIC_QUEUE_H
#define RW_FABRIC_QUEUE_H

#include "provider.h"

#include <stdbool.h>

/* Returns the least power of two that is at least n. */
static inline uint32_t rwb_pow2(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

/* Work requests from posting until the completion of the request, or of a later one, is polled. */
struct rwb_sends {
	struct rwf_send_wr *ring;
	uint8_t *inline_bytes; /* max_inline for each */
	uint32_t mask, limit, max_inline;
	uint64_t posted, freed;
};

int rwb_sends_make(struct rwb_sends *s, uint32_t limit, uint32_t max_inline); /* 0 or -ENOMEM */
void rwb_sends_free(struct rwb_sends *s);
/* Checks a request before it is posted, by rwb_check_send, and checks that the queue has room. Returns 0 or a negative errno. */
int rwb_sends_check(const struct rwb_sends *s, const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t device_flags);
/* Appends a request that was checked, and its bytes if it is inline. */
void rwb_sends_post(struct rwb_sends *s, const struct rwf_send_wr *wr);

static inline struct rwf_send_wr *rwb_send(const struct rwb_sends *s, uint64_t index)
{
	return &s->ring[index & s->mask];
}

/* Returns the address of the payload of a request in the queue. */
static inline const void *rwb_payload(const struct rwb_sends *s, uint64_t index)
{
	const struct rwf_send_wr *wr = rwb_send(s, index);

	if (wr->flags & RWF_SEND_INLINE)
		return s->inline_bytes + (size_t)(index & s->mask) * s->max_inline;
	return (const void *)(uintptr_t)wr->laddr;
}

struct rwb_completion {
	struct rwf_wc wc;
	rwf_qp *qp;
	uint64_t done; /* wc ends this many requests of its direction, counted from the first */
};

/* Completions from their event until they are polled. */
struct rwb_ring {
	struct rwb_completion *entries;
	uint64_t head, tail;
	uint32_t mask, limit;
};

int rwb_ring_make(struct rwb_ring *r, uint32_t limit); /* 0 or -ENOMEM */
void rwb_ring_free(struct rwb_ring *r);
/* Drops the completions of a queue pair. */
void rwb_ring_drop(struct rwb_ring *r, const rwf_qp *qp);

static inline uint32_t rwb_ring_length(const struct rwb_ring *r)
{
	return (uint32_t)(r->tail - r->head);
}

/* Returns the next entry, to be filled, or NULL if the ring is full. */
static inline struct rwb_completion *rwb_ring_push(struct rwb_ring *r)
{
	return rwb_ring_length(r) < r->limit ? &r->entries[r->tail++ & r->mask] : NULL;
}

/* Returns the oldest entry, valid until the next push, or NULL if the ring is empty. */
static inline const struct rwb_completion *rwb_ring_pop(struct rwb_ring *r)
{
	return r->head != r->tail ? &r->entries[r->head++ & r->mask] : NULL;
}

#endif
