/* Provider shm: descriptors in. Owner thread only; no allocation. */
#include "shm.h"

enum verdict { REFUSED, ACCEPTED, TOO_EARLY };

/*
 * Converts a descriptor, copied out of the shared memory, to a completion. It is refused if the peer had no right to send it or if
 * the region that it names does not exist. It comes too early if that region's message is not read yet.
 */
static enum verdict accept_descriptor(struct shm_qp *q, const struct shm_desc *d, struct rwf_wc *wc)
{
	wc->byte_len = d->len;
	wc->imm = d->imm;
	if (d->len == 0)
		return ACCEPTED;
	if (!rwb_mr_allows(&q->base.head, d->rkey, d->raddr, d->len, RWF_ACCESS_REMOTE_WRITE))
		return REFUSED;
	if (!d->by_ref)
		return ACCEPTED;
	if (!q->by_ref)
		return REFUSED;
	struct shm_remote_mr *m = shm_remote_find(q, d->lkey, d->laddr, d->len, 0);

	int left = m ? 0 : shm_drain(q);

	if (!m && left >= 0)
		m = shm_remote_find(q, d->lkey, d->laddr, d->len, 0);
	if (!m)
		return left > 0 ? TOO_EARLY : REFUSED;
	char *data = m->data + (d->laddr - m->addr);

	wc->addr = (uintptr_t)data;
	wc->src_addr = d->laddr;
	wc->src_rkey = d->lkey;
	if (__builtin_expect(m->sparse != NULL, 0) && !shm_sparse_there(m, data, d->len)) {
		wc->addr = d->raddr; /* our own memory, at the target */
		return shm_sparse_copy(m, (void *)(uintptr_t)d->raddr, data, d->len) ? ACCEPTED : REFUSED;
	}
	return ACCEPTED;
}

#define SHARED(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/*
 * Moves the descriptors that have arrived to the completion queue. Returns false if the peer had no right to send one of them, so
 * that the queue pair must fail.
 */
bool shm_receive(struct shm_qp *q)
{
	uint64_t posted = atomic_load_explicit(&q->base.recv_posted, memory_order_relaxed);

	while (q->base.received != posted) {
		struct shm_desc *s = &q->rx[q->base.received & q->base.recv_mask], d;

		if (atomic_load_explicit(&s->seq, memory_order_acquire) != q->base.received + 1)
			return true;
		d.laddr = SHARED(s->laddr);
		d.raddr = SHARED(s->raddr);
		d.lkey = SHARED(s->lkey);
		d.rkey = SHARED(s->rkey);
		d.len = SHARED(s->len);
		d.imm = SHARED(s->imm);
		d.by_ref = SHARED(s->by_ref);
		struct rwf_wc wc = {0};
		enum verdict verdict = accept_descriptor(q, &d, &wc);

		if (verdict != ACCEPTED)
			return verdict == TOO_EARLY;
		if (!rwb_complete_receive(&q->cq->base, &q->base, wc))
			return true;
	}
	return true;
}
