/* Provider shm: queue pairs, from creation to the error that ends them. Owner thread only, but for shm_raise. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void free_qp(struct shm_qp *q)
{
	free(q->rq);
	free(q->sq);
	free(q->sq_inline);
	free(q);
}

static struct shm_qp *alloc_qp(const struct rwf_qp_init *init)
{
	struct shm_qp *q = aligned_alloc(64, (sizeof *q + 63) & ~(size_t)63);
	uint32_t sends = shm_pow2(init->max_send_wr), recvs = shm_pow2(init->max_recv_wr);

	if (!q)
		return NULL;
	memset(q, 0, sizeof *q);
	q->rq = calloc(recvs, sizeof *q->rq);
	q->sq = calloc(sends, sizeof *q->sq);
	q->sq_inline = calloc(sends, init->max_inline ? init->max_inline : 1);
	if (!q->rq || !q->sq || !q->sq_inline) {
		free_qp(q);
		return NULL;
	}
	q->rx_mask = recvs - 1;
	q->sq_mask = sends - 1;
	return q;
}

int shm_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct shm_device *d = shm_dev(pd->dev);
	struct shm_qp *q;
	int rc;

	if (init->max_inline > SHM_MAX_INLINE)
		return rwf_fail(EINVAL, "create queue pair: %u bytes inline, the device allows %d", init->max_inline, SHM_MAX_INLINE);
	if (!init->send_cq || !init->recv_cq || init->send_cq->dev != pd->dev || init->recv_cq->dev != pd->dev)
		return rwf_fail(EINVAL, "create queue pair: its completion queues must be of the same device");
	q = alloc_qp(init);
	if (!q)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	q->base = (struct rwf_qp){.ops = pd->ops, .pd = pd, .state = RWF_QPS_INIT};
	q->send_cq = (struct shm_cq *)init->send_cq;
	q->recv_cq = (struct shm_cq *)init->recv_cq;
	q->max_send = init->max_send_wr;
	q->max_recv = init->max_recv_wr;
	q->max_inline = init->max_inline;
	q->by_ref = init->flags & RWF_QP_BY_REFERENCE;
	q->last_wake = SHM_DISARMED;
	q->adverts_seen = UINT64_MAX;
	q->sock = q->pidfd = -1;
	q->self.recv_depth = q->max_recv;
	q->self.by_ref = q->by_ref;
	memcpy(q->self.listener, d->name, SHM_COOKIE);
	rc = shm_random(q->self.cookie, SHM_COOKIE);
	if (!rc)
		rc = shm_cq_attach(q->send_cq, q);
	if (!rc && q->recv_cq != q->send_cq) {
		rc = shm_cq_attach(q->recv_cq, q);
		if (rc)
			shm_cq_detach(q->send_cq, q);
	}
	if (rc) {
		free_qp(q);
		return rc;
	}
	pthread_mutex_lock(&d->lock);
	q->base.num = q->self.qp_num = d->next_qp_num++ & 0xffffff;
	q->next = d->qps;
	d->qps = q;
	pthread_mutex_unlock(&d->lock);
	*out = &q->base;
	return 0;
}

int shm_qp_endpoint(rwf_qp *qp, void *buf, size_t cap)
{
	if (cap < SHM_ENDPOINT_LEN)
		return rwf_fail(EINVAL, "endpoint: needs %d bytes", SHM_ENDPOINT_LEN);
	rwf_shm_encode_endpoint(&((struct shm_qp *)qp)->self, buf);
	return SHM_ENDPOINT_LEN;
}

/* Any thread. */
void shm_raise(struct shm_qp *q, int event)
{
	atomic_fetch_or(&q->events, 1u << event);
	eventfd_write(shm_dev(q->base.pd->dev)->event_fd, 1);
}

static void flush_sends(struct shm_qp *q, int status)
{
	for (; q->sq_done != q->sq_posted; status = RWF_WC_WR_FLUSH_ERR) {
		uint64_t wr_id = q->sq[q->sq_done++ & q->sq_mask].wr_id;
		struct shm_cqe *e = shm_cq_push(q->send_cq);

		if (!e)
			continue;
		e->qp = q;
		e->sq_upto = q->sq_done;
		e->wc = (struct rwf_wc){.wr_id = wr_id, .qp_num = q->base.num, .status = (uint16_t)status};
	}
}

static void flush_receives(struct shm_qp *q)
{
	while (q->rx_head != q->rq_posted) {
		uint64_t wr_id = q->rq[q->rx_head++ & q->rx_mask];
		struct shm_cqe *e = shm_cq_push(q->recv_cq);

		if (!e)
			continue;
		e->qp = q;
		e->sq_upto = 0;
		e->wc = (struct rwf_wc){.wr_id = wr_id, .qp_num = q->base.num, .status = RWF_WC_WR_FLUSH_ERR,
					.opcode = RWF_WC_RECV_IMM};
	}
}

/*
 * Ends the queue pair: what had arrived is delivered, all else is flushed, the first waiting send with send_status. The
 * peer learns of it by the end of the socket. The state may be ERR already: the accepting thread gives passive queue pairs
 * up without touching what belongs to the owner.
 */
void shm_enter_error(struct shm_qp *q, int send_status)
{
	int was;

	if (q->flushed)
		return;
	q->flushed = true;
	was = atomic_exchange(&q->base.state, RWF_QPS_ERR);
	if (was == RWF_QPS_RTS)
		shm_receive(q);
	flush_sends(q, send_status);
	flush_receives(q);
	if (q->sock >= 0 && was == RWF_QPS_RTS) {
		shm_cq_unwatch(q->send_cq, q);
		shm_cq_unwatch(q->recv_cq, q);
		shutdown(q->sock, SHUT_RDWR);
	}
	if (was != RWF_QPS_ERR)
		shm_raise(q, RWF_EVENT_QP_FATAL);
}

int shm_fail_qp(rwf_qp *qp)
{
	struct shm_qp *q = (struct shm_qp *)qp;

	shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
	shm_cq_check(q->send_cq);
	shm_cq_check(q->recv_cq);
	return 0;
}

int shm_destroy_qp(rwf_qp *qp)
{
	struct shm_qp *q = (struct shm_qp *)qp;
	struct shm_device *d = shm_dev(qp->pd->dev);

	/* Off the device's list first: from then on no other thread knows the queue pair. */
	pthread_mutex_lock(&d->lock);
	for (struct shm_qp **p = &d->qps; *p; p = &(*p)->next)
		if (*p == q) {
			*p = q->next;
			break;
		}
	pthread_mutex_unlock(&d->lock);
	shm_cq_detach(q->send_cq, q);
	shm_cq_detach(q->recv_cq, q);
	if (q->sock >= 0) {
		shutdown(q->sock, SHUT_RDWR);
		close(q->sock);
	}
	if (q->pidfd >= 0)
		close(q->pidfd);
	shm_unmap_remote(q);
	if (q->shared)
		munmap(q->shared, q->shared_len);
	free_qp(q);
	return 0;
}
