/* Provider shm: descriptors in. Owner thread only; no allocation. */
#include "shm.h"

/*
 * Turns a descriptor, copied out of the shared memory, into a completion. Returns false where the peer had no right to send
 * it or the region it names does not exist.
 */
static bool accept_descriptor(struct shm_qp *q, const struct shm_desc *d, struct rwf_wc *wc)
{
	wc->byte_len = d->len;
	wc->imm = d->imm;
	if (d->len == 0)
		return true;
	if (!shm_mr_allows(q, d->rkey, d->raddr, d->len, RWF_ACCESS_REMOTE_WRITE))
		return false;
	if (!d->by_ref)
		return true;
	if (!q->by_ref)
		return false;
	struct shm_remote_mr *m = shm_remote_find(q, d->lkey, d->laddr, d->len, 0);

	if (!m && shm_drain(q) == 0)
		m = shm_remote_find(q, d->lkey, d->laddr, d->len, 0);
	if (!m)
		return false;
	char *data = m->data + (d->laddr - m->addr);

	wc->addr = (uintptr_t)data;
	wc->src_addr = d->laddr;
	wc->src_rkey = d->lkey;
	if (__builtin_expect(m->sparse != NULL, 0) && !shm_sparse_there(m, data, d->len)) {
		wc->addr = d->raddr; /* our own memory, where the sender aimed */
		return shm_sparse_copy(m, (void *)(uintptr_t)d->raddr, data, d->len);
	}
	return true;
}

#define SHARED(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/*
 * Moves the descriptors that have arrived to the completion queue. Returns false where one of them was not the peer's to
 * send: the queue pair must fail.
 */
bool shm_receive(struct shm_qp *q)
{
	uint64_t posted = atomic_load_explicit(&q->rq_posted, memory_order_relaxed);

	while (q->rx_head != posted) {
		struct shm_desc *s = &q->rx[q->rx_head & q->rx_mask], d;
		struct rwb_completion *e;

		if (atomic_load_explicit(&s->seq, memory_order_acquire) != q->rx_head + 1)
			return true;
		d.laddr = SHARED(s->laddr);
		d.raddr = SHARED(s->raddr);
		d.lkey = SHARED(s->lkey);
		d.rkey = SHARED(s->rkey);
		d.len = SHARED(s->len);
		d.imm = SHARED(s->imm);
		d.by_ref = SHARED(s->by_ref);
		struct rwf_wc wc = {.wr_id = q->rq[q->rx_head & q->rx_mask], .qp_num = q->base.num, .opcode = RWF_WC_RECV_IMM};

		if (!accept_descriptor(q, &d, &wc))
			return false;
		e = shm_cq_push(q->recv_cq);
		if (!e)
			return true;
		q->rx_head++;
		e->qp = &q->base;
		e->wc = wc;
	}
	return true;
}
