/* Provider ibv: completion queues, polled or waited for. */
#if __has_include(<infiniband/verbs.h>)

#define _GNU_SOURCE
#include "priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { POLL_BATCH = 32, ACK_BATCH = 64 };

static void dispose(struct vb_cq *cq)
{
	if (cq->cq)
		vb_lib.destroy_cq(cq->cq);
	if (cq->channel)
		vb_lib.destroy_comp_channel(cq->channel);
	if (cq->base.wake_fd >= 0)
		close(cq->base.wake_fd);
	rwb_ring_free(&cq->early);
	free(cq);
}

int vb_create_cq(rwf_device *base, uint32_t cqe, rwf_cq **out)
{
	struct vb_device *dev = (struct vb_device *)base;
	struct vb_cq *cq = calloc(1, sizeof *cq);

	if (!cq)
		return rwf_fail(ENOMEM, "create completion queue: no memory");
	cq->base = (rwf_cq){.ops = base->ops, .dev = base};
	cq->cqe = cqe;
	cq->base.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	cq->channel = vb_lib.create_comp_channel(dev->ctx);
	if (cq->channel && fcntl(cq->channel->fd, F_SETFL, O_NONBLOCK) == 0)
		cq->cq = vb_lib.create_cq(dev->ctx, (int)cqe, cq, cq->channel, 0);
	if (rwb_ring_make(&cq->early, cqe) || cq->base.wake_fd < 0 || !cq->cq) {
		int err = errno ? errno : ENOMEM;

		dispose(cq);
		return rwf_fail(err, "create completion queue of %u entries on %s: %s", cqe, dev->base.attr.name, strerror(err));
	}
	*out = &cq->base;
	return 0;
}

int vb_destroy_cq(rwf_cq *base)
{
	struct vb_cq *cq = (struct vb_cq *)base;

	vb_lib.ack_cq_events(cq->cq, cq->unacked); /* the library waits for them */
	dispose(cq);
	return 0;
}

/*
 * The hardware's work request ids hold direction, queue pair and number. A completion in error has neither opcode nor immediate.
 * Its id identifies its queue pair, and the requests that it frees: its own and the unsignaled ones before it.
 */
enum { SLOT_SHIFT = 32, RECV_SHIFT = 63 };

uint64_t vb_wr_id(const struct vb_qp *qp, bool recv, uint32_t seq)
{
	return (uint64_t)recv << RECV_SHIFT | (uint64_t)qp->slot << SLOT_SHIFT | seq;
}

static struct vb_qp *qp_of(const struct vb_device *dev, const struct ibv_wc *wc)
{
	return dev->qps[wc->wr_id >> SLOT_SHIFT & (VB_MAX_QP - 1)];
}

static void translate(struct vb_qp *qp, const struct ibv_wc *in, struct rwf_wc *out)
{
	bool recv = in->wr_id >> RECV_SHIFT;
	struct vb_queue *q = recv ? &qp->rq : &qp->sq;
	uint32_t seq = (uint32_t)in->wr_id;

	if (in->status != IBV_WC_SUCCESS)
		qp->base.state = RWF_QPS_ERR;
	else if (recv && qp->base.state == RWF_QPS_RTR)
		vb_establish(qp); /* its peer has arrived; the thread that waits for events reports that */
	q->tail = seq + 1;
	*out = (struct rwf_wc){.wr_id = q->wr_ids[seq & q->mask],
			       .qp_num = qp->base.num,
			       .status = (uint16_t)in->status,
			       .opcode = recv ? RWF_WC_RECV_IMM : RWF_WC_SEND};
	if (recv && in->status == IBV_WC_SUCCESS) {
		out->byte_len = in->byte_len;
		out->imm = ntohl(in->imm_data);
	}
}

int vb_poll_cq(rwf_cq *base, struct rwf_wc *wc, int n)
{
	struct vb_cq *cq = (struct vb_cq *)base;
	const struct vb_device *dev = (const struct vb_device *)base->dev;
	const struct rwb_completion *c;
	struct ibv_wc batch[POLL_BATCH];
	int taken = 0;

	if (cq->overran)
		return rwf_fail(EOVERFLOW, "the completion queue overran its %u entries", cq->cqe);
	while (taken < n && (c = rwb_ring_pop(&cq->early)))
		wc[taken++] = c->wc;
	while (taken < n) {
		int want = n - taken < POLL_BATCH ? n - taken : POLL_BATCH;
		int got = ibv_poll_cq(cq->cq, want, batch);

		if (got < 0)
			return rwf_fail(EIO, "poll completion queue of %s: the device failed", dev->base.attr.name);
		for (int i = 0; i < got; i++)
			translate(qp_of(dev, &batch[i]), &batch[i], &wc[taken++]);
		if (got < want)
			break;
	}
	return taken;
}

static void defer(struct vb_cq *cq, struct vb_qp *qp, const struct rwf_wc *wc)
{
	struct rwb_completion *c = rwb_ring_push(&cq->early);

	if (c)
		*c = (struct rwb_completion){.wc = *wc, .qp = &qp->base};
	else
		cq->overran = true;
}

void vb_set_aside(struct vb_qp *qp, uint32_t seq, int *status)
{
	struct vb_cq *cq = qp->cq;
	const struct vb_device *dev = (const struct vb_device *)cq->base.dev;
	struct ibv_wc batch[POLL_BATCH];
	struct rwf_wc wc;
	int got;

	rwb_ring_drop(&cq->early, &qp->base);
	while ((got = ibv_poll_cq(cq->cq, POLL_BATCH, batch)) > 0) {
		for (int i = 0; i < got; i++) {
			struct vb_qp *of = qp_of(dev, &batch[i]);

			translate(of, &batch[i], &wc);
			if (of != qp)
				defer(cq, of, &wc);
			else if (batch[i].wr_id == vb_wr_id(qp, false, seq))
				*status = wc.status;
		}
	}
}

/* libibverbs has no portable moderation of events, so the first completion wakes. */
int vb_req_notify_cq(rwf_cq *base, uint32_t count)
{
	struct vb_cq *cq = (struct vb_cq *)base;
	int err = ibv_req_notify_cq(cq->cq, 0);

	(void)count;
	return err ? rwf_fail(err, "arm completion queue: %s", strerror(err)) : 0;
}

/* Acknowledging takes a lock, so it is done for many events at once. */
static void take_events(struct vb_cq *cq)
{
	struct ibv_cq *of;
	void *context;

	while (vb_lib.get_cq_event(cq->channel, &of, &context) == 0)
		cq->unacked++;
	if (cq->unacked >= ACK_BATCH) {
		vb_lib.ack_cq_events(cq->cq, cq->unacked);
		cq->unacked = 0;
	}
}

int vb_wait_cq(rwf_cq *base, int64_t timeout_us)
{
	struct vb_cq *cq = (struct vb_cq *)base;
	struct pollfd fds[] = {{cq->channel->fd, POLLIN, 0}, {base->wake_fd, POLLIN, 0}};

	if (rwb_ring_length(&cq->early) || cq->overran)
		return 1;
	if (rwb_poll(fds, 2, timeout_us > 0 ? (uint64_t)timeout_us * 1000 : 0) <= 0)
		return 0;
	if (fds[1].revents)
		rwb_clear(base->wake_fd);
	if (fds[0].revents)
		take_events(cq);
	return 1;
}

#endif
