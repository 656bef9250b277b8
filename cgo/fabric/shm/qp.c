/* Provider shm: queue pairs from creation to their end. Owner thread only. */
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
	free(q->waiting);
	rwb_sends_free(&q->sends);
	free(q);
}

static uint32_t waiting_cap(const struct rwf_qp_init *init)
{
	uint32_t cap = init->max_inline ? SHM_MAX_WAITING / init->max_inline : 0;

	cap = cap < 4 ? 4 : cap;
	return cap < init->max_send_wr ? cap : init->max_send_wr;
}

static struct shm_qp *alloc_qp(const struct rwf_qp_init *init)
{
	struct shm_qp *q = aligned_alloc(64, (sizeof *q + 63) & ~(size_t)63);
	uint32_t recvs = rwb_pow2(init->max_recv_wr);

	if (!q)
		return NULL;
	memset(q, 0, sizeof *q);
	q->rq = calloc(recvs, sizeof *q->rq);
	q->rx_mask = recvs - 1;
	q->waiting_cap = waiting_cap(init);
	if (init->max_inline)
		q->waiting = calloc(q->waiting_cap, init->max_inline);
	if (rwb_sends_make(&q->sends, init->max_send_wr, 0) || !q->rq || (init->max_inline && !q->waiting)) {
		free_qp(q);
		return NULL;
	}
	return q;
}

int shm_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct shm_device *d = shm_dev(pd->dev);
	struct shm_qp *q;
	int rc;

	q = alloc_qp(init);
	if (!q)
		return rwf_fail(ENOMEM, "create queue pair: out of memory");
	q->base = (struct rwf_qp){.ops = pd->ops, .pd = pd, .state = RWF_QPS_INIT};
	q->send_cq = (struct shm_cq *)init->send_cq;
	q->recv_cq = (struct shm_cq *)init->recv_cq;
	q->max_recv = init->max_recv_wr;
	q->by_ref = init->flags & RWF_QP_BY_REFERENCE;
	q->last_wake = SHM_DISARMED;
	q->adverts_seen = UINT64_MAX;
	q->sock = q->pidfd = q->shared_guard = -1;
	q->sends.max_inline = init->max_inline;
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
	shm_encode_endpoint(&((struct shm_qp *)qp)->self, buf);
	return SHM_ENDPOINT_LEN;
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

	/* First off the device's list: from then on no other thread knows the queue pair. */
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
	shm_unmap_rings(q);
	free_qp(q);
	return 0;
}
