#include "queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int rwb_sends_make(struct rwb_sends *s, uint32_t limit, uint32_t max_inline)
{
	uint32_t size = rwb_pow2(limit);

	*s = (struct rwb_sends){.mask = size - 1, .limit = limit, .max_inline = max_inline};
	s->ring = calloc(size, sizeof *s->ring);
	s->inline_bytes = calloc(size, max_inline ? max_inline : 1);
	return s->ring && s->inline_bytes ? 0 : -ENOMEM;
}

void rwb_sends_free(struct rwb_sends *s)
{
	free(s->ring);
	free(s->inline_bytes);
}

int rwb_sends_check(const struct rwb_sends *s, const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t device_flags)
{
	if (s->posted - s->freed >= s->limit)
		return rwf_fail(ENOMEM,
				"post send on queue pair 0x%x: its %u work requests are outstanding; poll a later completion",
				qp->num, s->limit);
	return rwb_check_send(qp, wr, s->max_inline, device_flags);
}

void rwb_sends_post(struct rwb_sends *s, const struct rwf_send_wr *wr)
{
	uint64_t index = s->posted++ & s->mask;

	s->ring[index] = *wr;
	if (wr->flags & RWF_SEND_INLINE && wr->length)
		memcpy(s->inline_bytes + (size_t)index * s->max_inline, (const void *)(uintptr_t)wr->laddr, wr->length);
}

int rwb_ring_make(struct rwb_ring *r, uint32_t limit)
{
	uint32_t size = rwb_pow2(limit);

	*r = (struct rwb_ring){.mask = size - 1, .limit = limit};
	r->entries = calloc(size, sizeof *r->entries);
	return r->entries ? 0 : -ENOMEM;
}

void rwb_ring_free(struct rwb_ring *r)
{
	free(r->entries);
}

void rwb_ring_drop(struct rwb_ring *r, const rwf_qp *qp)
{
	uint64_t tail = r->head;

	for (uint64_t i = r->head; i != r->tail; i++)
		if (r->entries[i & r->mask].qp != qp)
			r->entries[tail++ & r->mask] = r->entries[i & r->mask];
	r->tail = tail;
}
