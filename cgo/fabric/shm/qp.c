/* Provider shm: queue pairs from creation to their end. Owner thread only. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void free_qp(struct shm_qp *q)
{
	free(q->waiting);
	rwb_qp_free(&q->base);
}

static uint32_t waiting_cap(const struct rwf_qp_init *init)
{
	uint32_t cap = init->max_inline ? SHM_MAX_WAITING / init->max_inline : 0;

	cap = cap < 4 ? 4 : cap;
	return cap < init->max_send_wr ? cap : init->max_send_wr;
}

static struct shm_qp *alloc_qp(const struct rwf_qp_init *init)
{
	struct shm_qp *q = calloc(1, sizeof *q);

	if (!q)
		return NULL;
	q->waiting_cap = waiting_cap(init);
	if (init->max_inline)
		q->waiting = calloc(q->waiting_cap, init->max_inline);
	if (rwb_qp_make(&q->base, init, 0) || (init->max_inline && !q->waiting)) {
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
	q->cq = (struct shm_cq *)init->cq;
	q->allowance = SHM_FREE_COST;
	q->by_ref = init->flags & RWF_QP_BY_REFERENCE;
	q->last_wake = SHM_DISARMED;
	q->adverts_seen = UINT64_MAX;
	q->sock = q->pidfd = q->shared_guard = -1;
	q->base.sends.max_inline = init->max_inline;
	q->self = (struct shm_endpoint){
		.magic = SHM_ENDPOINT_MAGIC, .version = SHM_VERSION, .by_ref = q->by_ref, .recv_depth = q->base.recv_limit};
	memcpy(q->self.listener, d->name, SHM_COOKIE);
	rc = shm_random(q->self.cookie, SHM_COOKIE);
	if (rc) {
		free_qp(q);
		return rc;
	}
	rwb_qp_enter(&q->base, pd);
	q->self.qp_num = q->base.head.num;
	TAILQ_INSERT_TAIL(&q->cq->qps, q, of_cq);
	*out = &q->base.head;
	return 0;
}

int shm_qp_endpoint(rwf_qp *qp, void *buf)
{
	memcpy(buf, &((struct shm_qp *)qp)->self, sizeof(struct shm_endpoint));
	return sizeof(struct shm_endpoint);
}

int shm_fail_qp(rwf_qp *qp)
{
	struct shm_qp *q = (struct shm_qp *)qp;

	shm_enter_error(q, RWF_WC_WR_FLUSH_ERR);
	shm_cq_check(q->cq);
	return 0;
}

int shm_destroy_qp(rwf_qp *qp)
{
	struct shm_qp *q = (struct shm_qp *)qp;

	rwb_qp_leave(&q->base, &q->cq->base);
	shm_cq_unwatch(q);
	TAILQ_REMOVE(&q->cq->qps, q, of_cq);
	if (q->sock >= 0)
		shm_hang_up(q->sock);
	shm_close_own(q->pidfd);
	shm_unmap_remote(q);
	shm_unmap_rings(q);
	free_qp(q);
	return 0;
}
