/* Provider ibv: queue pairs, and posting to them. */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Requests posted with one doorbell, limited by the size of the stack. */
enum { POST_BATCH = 64, PSN_MASK = 0xffffff };

/*
 * Reserves room in the completion queue for all of a queue's requests, because a queue pair flushes what is posted, and makes the
 * queue.
 */
static int make_queue(struct vb_queue *q, struct vb_cq *cq, uint32_t size)
{
	uint32_t room = rwb_pow2(size);

	if (size > cq->cqe - cq->reserved)
		return rwf_fail(
			EINVAL,
			"create queue pair: its %u work requests could overrun the completion queue, of whose %u entries %u are taken: "
			"make that larger",
			size, cq->cqe, cq->reserved);
	cq->reserved += size;
	q->size = size;
	q->mask = room - 1;
	q->wr_ids = calloc(room, sizeof *q->wr_ids);
	return q->wr_ids ? 0 : rwf_fail(ENOMEM, "create queue pair: no memory for %u work requests", size);
}

int vb_modify(struct vb_qp *qp, struct ibv_qp_attr *attr, int mask, const char *to)
{
	int err = vb_lib.modify_qp(qp->qp, attr, mask);

	return err ? rwf_fail(err, "bring queue pair 0x%x of %s to %s: %s", qp->base.num, qp->dev->base.attr.name, to,
			      strerror(err))
		   : 0;
}

int vb_to_init(struct vb_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = qp->dev->port,
				   .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};

	return vb_modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

int vb_to_error(struct vb_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	qp->base.state = RWF_QPS_ERR;
	return vb_modify(qp, &attr, IBV_QP_STATE, "ERR");
}

void vb_unlink_waiting(struct vb_qp *qp)
{
	if (qp->waiting)
		LIST_REMOVE(qp, waits);
	qp->waiting = false;
}

void vb_stop_waiting(struct vb_qp *qp)
{
	pthread_mutex_lock(&qp->dev->lock);
	vb_unlink_waiting(qp);
	pthread_mutex_unlock(&qp->dev->lock);
}

/* Takes the device's present address. */
static int take_address(struct vb_device *dev, struct vb_qp *qp)
{
	struct ibv_port_attr port;
	int rc = 0;

	pthread_mutex_lock(&dev->lock);
	if (dev->addr_stale) {
		rc = vb_query_port(dev, dev->port, &port);
		rc = rc ? rwf_fail(rc, "create queue pair: query port %u of %s: %s", dev->port, dev->base.attr.name, strerror(rc))
			: vb_choose_address(dev, &port);
		dev->addr_stale = rc != 0;
	}
	qp->addr = dev->addr;
	pthread_mutex_unlock(&dev->lock);
	return rc;
}

static int take_slot(struct vb_device *dev, struct vb_qp *qp)
{
	int rc = -EAGAIN;

	pthread_mutex_lock(&dev->lock);
	for (uint32_t i = 0; i < VB_MAX_QP && rc; i++) {
		uint32_t slot = dev->next_slot++ & (VB_MAX_QP - 1);

		if (dev->qps[slot])
			continue;
		dev->qps[slot] = qp;
		qp->slot = slot;
		rc = 0;
	}
	pthread_mutex_unlock(&dev->lock);
	return rc ? rwf_fail(EAGAIN, "create queue pair: %d are in use", VB_MAX_QP) : 0;
}

static void dispose(struct vb_qp *qp)
{
	pthread_mutex_lock(&qp->dev->lock);
	if (qp->dev->qps[qp->slot] == qp)
		qp->dev->qps[qp->slot] = NULL;
	pthread_mutex_unlock(&qp->dev->lock);
	qp->cq->reserved -= qp->sq.size + qp->rq.size;
	free(qp->sq.wr_ids);
	free(qp->rq.wr_ids);
	free(qp);
}

static int make_hardware(struct vb_qp *qp, struct vb_pd *pd, const struct rwf_qp_init *init)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = qp,
		.send_cq = qp->cq->cq,
		.recv_cq = qp->cq->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = init->max_send_wr, .max_recv_wr = init->max_recv_wr, .max_send_sge = 1, .max_recv_sge = 1}};

	qp->qp = vb_lib.create_qp(pd->pd, &attr);
	if (!qp->qp) {
		int err = errno;

		return rwf_fail(err, "create queue pair of %u sends and %u receives on %s: %s", init->max_send_wr,
				init->max_recv_wr, qp->dev->base.attr.name, strerror(err));
	}
	qp->base.num = qp->qp->qp_num;
	return vb_to_init(qp);
}

static int set_up(struct vb_qp *qp, struct vb_pd *pd, const struct rwf_qp_init *init)
{
	int rc;

	if ((rc = make_queue(&qp->sq, qp->cq, init->max_send_wr)) || (rc = make_queue(&qp->rq, qp->cq, init->max_recv_wr)))
		return rc;
	if (getrandom(&qp->psn, sizeof qp->psn, 0) != sizeof qp->psn)
		return rwf_fail(EIO, "create queue pair: no random packet sequence number");
	qp->psn &= PSN_MASK;
	if ((rc = take_slot(qp->dev, qp)) == 0 && (rc = take_address(qp->dev, qp)) == 0 && (rc = make_hardware(qp, pd, init)) &&
	    qp->qp)
		vb_lib.destroy_qp(qp->qp);
	return rc;
}

int vb_create_qp(rwf_pd *base, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct vb_pd *pd = (struct vb_pd *)base;
	struct vb_qp *qp = calloc(1, sizeof *qp);
	int rc;

	if (!qp)
		return rwf_fail(ENOMEM, "create queue pair: no memory");
	qp->base = (rwf_qp){.ops = base->ops, .pd = base, .state = RWF_QPS_INIT};
	qp->dev = (struct vb_device *)base->dev;
	qp->cq = (struct vb_cq *)init->cq;
	if ((rc = set_up(qp, pd, init))) {
		dispose(qp);
		return rc;
	}
	*out = &qp->base;
	return 0;
}

int vb_destroy_qp(rwf_qp *base)
{
	struct vb_qp *qp = (struct vb_qp *)base;
	int status, err;

	vb_stop_waiting(qp);
	err = vb_lib.destroy_qp(qp->qp);
	if (err)
		return rwf_fail(err, "destroy queue pair 0x%x: %s", base->num, strerror(err));
	/* Soft-RoCE leaves its completions in the queue. */
	vb_set_aside(qp, 0, &status);
	dispose(qp);
	return 0;
}

int vb_fail_qp(rwf_qp *base)
{
	struct vb_qp *qp = (struct vb_qp *)base;

	vb_stop_waiting(qp);
	return vb_to_error(qp);
}

static int check_send(const struct vb_qp *qp, const struct rwf_send_wr *wr)
{
	int rc = rwb_check_send(&qp->base, wr, 0, RWF_DEV_LINK);

	if (rc)
		return rc;
	if (qp->sq.head - qp->sq.tail == qp->sq.size)
		return rwf_fail(ENOMEM,
				"post send on queue pair 0x%x: its %u work requests are outstanding; poll a later completion",
				qp->base.num, qp->sq.size);
	return 0;
}

static void fill(struct vb_qp *qp, const struct rwf_send_wr *in, struct ibv_send_wr *out, struct ibv_sge *sge)
{
	uint32_t seq = qp->sq.head++;

	qp->sq.wr_ids[seq & qp->sq.mask] = in->wr_id;
	*sge = (struct ibv_sge){in->laddr, in->length, in->lkey};
	*out = (struct ibv_send_wr){.wr_id = vb_wr_id(qp, false, seq),
				    .next = out + 1,
				    .sg_list = sge,
				    .num_sge = in->length != 0,
				    .opcode = in->opcode == RWF_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
				    .send_flags = in->flags & RWF_SEND_SIGNALED ? IBV_SEND_SIGNALED : 0u,
				    .imm_data = htonl(in->imm),
				    .wr.rdma = {in->raddr, in->rkey}};
}

/* Posts up to a batch. Returns the number of posted requests, and sets rc if not all were posted. */
static int post_batch(struct vb_qp *qp, const struct rwf_send_wr *wr, int n, int *rc)
{
	struct ibv_send_wr list[POST_BATCH], *bad = NULL;
	struct ibv_sge sge[POST_BATCH];
	int filled = 0, err;

	while (filled < n && filled < POST_BATCH && (*rc = check_send(qp, &wr[filled])) == 0) {
		fill(qp, &wr[filled], &list[filled], &sge[filled]);
		filled++;
	}
	if (!filled)
		return 0;
	list[filled - 1].next = NULL;
	err = ibv_post_send(qp->qp, list, &bad);
	if (err) {
		int taken = bad ? (int)(bad - list) : 0;

		*rc = rwf_fail(err, "post send on queue pair 0x%x: %s", qp->base.num, strerror(err));
		qp->sq.head -= (uint32_t)(filled - taken);
		filled = taken;
	}
	return filled;
}

int vb_post_send(rwf_qp *base, const struct rwf_send_wr *wr, int n)
{
	struct vb_qp *qp = (struct vb_qp *)base;
	int posted = 0, rc = 0;

	if (!qp->connected)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: it is not connected", base->num);
	while (posted < n && rc == 0)
		posted += post_batch(qp, wr + posted, n - posted, &rc);
	return posted ? posted : rc;
}

int vb_hand_recvs(struct vb_qp *qp, uint32_t seq, int n)
{
	struct ibv_recv_wr list[POST_BATCH], *bad;
	int handed = 0;

	while (handed < n) {
		int k = n - handed < POST_BATCH ? n - handed : POST_BATCH;

		for (int i = 0; i < k; i++)
			list[i] = (struct ibv_recv_wr){.wr_id = vb_wr_id(qp, true, seq++), .next = &list[i + 1]};
		list[k - 1].next = NULL;
		bad = NULL;
		if (ibv_post_recv(qp->qp, list, &bad))
			return handed + (bad ? (int)(bad - list) : 0);
		handed += k;
	}
	return handed;
}

int vb_post_recv(rwf_qp *base, uint64_t wr_id, int n)
{
	struct vb_qp *qp = (struct vb_qp *)base;
	uint32_t occupied = qp->rq.head - qp->rq.tail;
	int handed;

	if (n < 0 || (uint32_t)n > qp->rq.size - occupied)
		return rwf_fail(ENOMEM, "post %d receives on queue pair 0x%x: %u of its %u are outstanding", n, base->num, occupied,
				qp->rq.size);
	for (int i = 0; i < n; i++)
		qp->rq.wr_ids[(qp->rq.head + (uint32_t)i) & qp->rq.mask] = wr_id;
	handed = vb_hand_recvs(qp, qp->rq.head, n);
	qp->rq.head += (uint32_t)handed;
	if (handed < n)
		return rwf_fail(EIO, "post %d receives on queue pair 0x%x: the device took %d", n, base->num, handed);
	if (base->state == RWF_QPS_ERR)
		return vb_to_error(qp); /* soft-RoCE flushes requests posted in error only on another transition to it */
	return 0;
}

#endif
