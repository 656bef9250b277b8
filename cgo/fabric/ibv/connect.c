/*
 * Provider ibv: bringing queue pairs up, and noticing that peers arrive and leave.
 *
 * Verbs have no handshake. Both sides get the other's number and go to RTS on their own. So the active side writes 0 bytes, which
 * touches no memory and consumes no receive. Connecting ends with the acknowledgement: the peer is up, and the path works in both
 * directions. The passive side sees the write change the packet sequence number that it expects.
 */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* RNR_RETRIES of 7 would mean for ever. */
enum { NOT_YET = -1, HOP_LIMIT = 255, RNR_RETRIES = 6, ARRIVAL_POLL_MS = 5 };

int vb_qp_endpoint(rwf_qp *base, void *buf)
{
	const struct vb_qp *qp = (const struct vb_qp *)base;
	const struct vb_device *dev = qp->dev;
	struct rwf_ibv_endpoint e = {RWF_IBV_ENDPOINT,         .link = (uint8_t)qp->addr.link,
				     .mtu = (uint8_t)dev->mtu, .qpn = base->num,
				     .psn = qp->psn,           .lid = qp->addr.lid};

	memcpy(e.gid, qp->addr.gid.raw, sizeof e.gid);
	memcpy(buf, &e, sizeof e);
	return sizeof e;
}

static int unreachable(struct vb_qp *qp, const struct rwf_ibv_endpoint *peer, int rc)
{
	char ours[INET6_ADDRSTRLEN], theirs[INET6_ADDRSTRLEN];

	inet_ntop(AF_INET6, qp->addr.gid.raw, ours, sizeof ours);
	inet_ntop(AF_INET6, peer->gid, theirs, sizeof theirs);
	return rwf_fail(
		-rc,
		"connect queue pair 0x%x: %s port %u cannot reach %s from %s (GID %u): %s: check the route between them, or choose "
		"another gid=",
		qp->base.num, qp->dev->base.attr.name, qp->dev->port, theirs, ours, qp->addr.gid_index, strerror(-rc));
}

static int to_rts(struct vb_qp *qp, const struct rwf_connect_attr *a)
{
	const struct vb_device *dev = qp->dev;
	uint8_t retry = (uint8_t)dev->retry;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
				   .sq_psn = qp->psn,
				   .retry_cnt = retry,
				   .rnr_retry = RNR_RETRIES,
				   .timeout = dev->timeout ? (uint8_t)dev->timeout : rwf_ibv_ack_timeout(a->ack_timeout_ms, retry),
				   .max_rd_atomic = 0};

	return vb_modify(qp, &attr,
			 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				 IBV_QP_MAX_QP_RD_ATOMIC,
			 "RTS");
}

static int bring_up(struct vb_qp *qp, const struct rwf_ibv_endpoint *peer, const struct rwf_connect_attr *a)
{
	const struct vb_device *dev = qp->dev;
	int rc;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = peer->mtu < dev->mtu ? peer->mtu : dev->mtu,
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 0,
		.min_rnr_timer = rwf_ibv_rnr_timer(a->rnr_timeout_ms, RNR_RETRIES),
		.ah_attr = {.dlid = (uint16_t)peer->lid,
			    .sl = (uint8_t)dev->sl,
			    .port_num = dev->port,
			    .is_global = peer->link != RWF_IBV_IB,
			    .grh = {.sgid_index = qp->addr.gid_index, .hop_limit = HOP_LIMIT, .traffic_class = (uint8_t)dev->tc}}};

	memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
	rc = vb_modify(qp, &attr,
		       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			       IBV_QP_MIN_RNR_TIMER,
		       "RTR");
	return rc ? unreachable(qp, peer, rc) : to_rts(qp, a);
}

/* Writes 0 bytes to the peer, to check that it is up. Sets the write's status, or NOT_YET at the deadline. */
static int probe(struct vb_qp *qp, uint64_t deadline_ns, int cancel_fd, int *status)
{
	const struct rwf_send_wr nothing = {.opcode = RWF_WRITE, .flags = RWF_SEND_SIGNALED};
	uint32_t seq = qp->sq.head;
	int n = vb_post_send(&qp->base, &nothing, 1);

	*status = NOT_YET;
	if (n < 0)
		return n;
	for (;;) {
		vb_set_aside(qp, seq, status);
		if (*status != NOT_YET || rwb_now_ns() >= deadline_ns)
			return 0;
		n = rwb_connect_wait(-1, 0, cancel_fd, 50000);
		if (n < 0) {
			vb_to_error(qp);
			return n;
		}
	}
}

/* Restarts connecting. An error flushed the receives, so it posts them again. */
static int start_again(struct vb_qp *qp, uint32_t first_recv, const struct rwf_ibv_endpoint *peer, const struct rwf_connect_attr *a)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	int n = (int)(qp->rq.head - first_recv), rc, status;

	if ((rc = vb_modify(qp, &attr, IBV_QP_STATE, "RESET")))
		return rc;
	vb_set_aside(qp, 0, &status);
	qp->sq.tail = qp->sq.head;
	qp->rq.tail = first_recv;
	if ((rc = vb_to_init(qp)))
		return rc;
	if (vb_hand_recvs(qp, first_recv, n) != n)
		return rwf_fail(EIO, "connect queue pair 0x%x: the device does not take its receives again", qp->base.num);
	return bring_up(qp, peer, a);
}

static int nobody_answers(struct vb_qp *qp, const struct rwf_ibv_endpoint *peer, const struct rwf_connect_attr *a)
{
	char theirs[INET6_ADDRSTRLEN];

	vb_to_error(qp);
	inet_ntop(AF_INET6, peer->gid, theirs, sizeof theirs);
	return rwf_fail(ETIMEDOUT, "connect queue pair 0x%x: queue pair 0x%x at %s (lid %u) did not answer %s within %u ms",
			qp->base.num, peer->qpn, theirs, peer->lid, qp->dev->base.attr.name, a->timeout_ms);
}

static int connect_active(struct vb_qp *qp, const struct rwf_ibv_endpoint *peer, const struct rwf_connect_attr *a)
{
	uint64_t deadline_ns = rwb_now_ns() + (uint64_t)a->timeout_ms * 1000000;
	uint32_t first_recv = qp->rq.tail;
	int status, rc;

	for (;;) {
		if ((rc = probe(qp, deadline_ns, a->cancel_fd, &status)))
			return rc;
		if (status == IBV_WC_SUCCESS) {
			qp->base.state = RWF_QPS_RTS;
			return 0;
		}
		if (rwb_now_ns() >= deadline_ns)
			return nobody_answers(qp, peer, a);
		if ((rc = start_again(qp, first_recv, peer, a)))
			return rc;
	}
}

static void wait_for_peer(struct vb_qp *qp, uint32_t timeout_ms)
{
	struct vb_device *dev = qp->dev;

	qp->base.state = RWF_QPS_RTR;
	qp->deadline_ns = rwb_now_ns() + (uint64_t)timeout_ms * 1000000;
	pthread_mutex_lock(&dev->lock);
	qp->waiting = true;
	LIST_INSERT_HEAD(&dev->waiting, qp, waits);
	pthread_mutex_unlock(&dev->lock);
	rwb_notify(dev->kick_fd);
}

static const char *link_name(uint8_t link)
{
	return link == RWF_IBV_IB ? "InfiniBand" : link == RWF_IBV_ROCE_V1 ? "RoCE v1" : "RoCE v2";
}

int vb_connect_qp(rwf_qp *base, const void *buf, size_t len, const struct rwf_connect_attr *a)
{
	struct vb_qp *qp = (struct vb_qp *)base;
	struct rwf_ibv_endpoint peer;
	int rc;

	if ((rc = rwf_ibv_decode_endpoint(buf, len, &peer)))
		return rc;
	if (peer.link != qp->addr.link)
		return rwf_fail(EPROTONOSUPPORT,
				"connect queue pair 0x%x: the peer speaks %s, %s speaks %s: choose matching gid= options",
				base->num, link_name(peer.link), qp->dev->base.attr.name, link_name(qp->addr.link));
	if ((rc = bring_up(qp, &peer, a)))
		return rc;
	qp->connected = true;
	qp->peer_psn = peer.psn;
	if (a->active)
		return connect_active(qp, &peer, a);
	wait_for_peer(qp, a->timeout_ms);
	return 0;
}

/* Reports whether anything has arrived: data was polled, or the packet sequence number has changed since it was set. */
static bool arrived(struct vb_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (qp->base.state == RWF_QPS_RTS || !qp->dev->arrival)
		return true;
	return vb_lib.query_qp(qp->qp, &attr, IBV_QP_RQ_PSN, &init) == 0 && attr.rq_psn != qp->peer_psn;
}

/* Finds the first of the waiting queue pairs whose peer arrived, or cannot arrive. Called with the lock held. */
static int next_arrival(struct vb_device *dev, struct rwf_async_event *out)
{
	uint64_t now = rwb_now_ns();
	struct vb_qp *qp;

	LIST_FOREACH(qp, &dev->waiting, waits) {
		if (arrived(qp)) {
			vb_unlink_waiting(qp);
			vb_establish(qp);
			*out = (struct rwf_async_event){RWF_EVENT_QP_ESTABLISHED, qp->base.num};
			return 1;
		}
		if (now >= qp->deadline_ns) {
			vb_unlink_waiting(qp);
			vb_to_error(qp);
			*out = (struct rwf_async_event){RWF_EVENT_QP_FATAL, qp->base.num};
			return 1;
		}
	}
	return 0;
}

/* Translates the library's events into the contract's. Returns 0 for an event without a translation. */
static int convert(struct vb_device *dev, const struct ibv_async_event *ev, struct rwf_async_event *out)
{
	struct vb_cq *cq;
	struct vb_qp *qp;

	*out = (struct rwf_async_event){0};
	if (ev->event_type == IBV_EVENT_GID_CHANGE || ev->event_type == IBV_EVENT_LID_CHANGE ||
	    ev->event_type == IBV_EVENT_PORT_ACTIVE) {
		pthread_mutex_lock(&dev->lock);
		dev->addr_stale = true;
		pthread_mutex_unlock(&dev->lock);
	}
	switch (ev->event_type) {
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
		if (ev->element.port_num == dev->port)
			out->type = ev->event_type == IBV_EVENT_PORT_ACTIVE ? RWF_EVENT_PORT_ACTIVE : RWF_EVENT_PORT_ERR;
		break;
	case IBV_EVENT_DEVICE_FATAL:
		out->type = RWF_EVENT_DEVICE_FATAL;
		break;
	case IBV_EVENT_CQ_ERR:
		cq = ev->element.cq->cq_context;
		cq->overran = true;
		rwf_wake_cq(&cq->base);
		out->type = RWF_EVENT_CQ_ERR;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		qp = ev->element.qp->qp_context;
		qp->base.state = RWF_QPS_ERR;
		*out = (struct rwf_async_event){RWF_EVENT_QP_FATAL, qp->base.num};
		break;
	default:
		break;
	}
	return out->type != 0;
}

static int next_event(struct vb_device *dev, struct rwf_async_event *out)
{
	struct ibv_async_event ev;
	int found = 0;

	while (!found && vb_lib.get_async_event(dev->ctx, &ev) == 0) {
		found = convert(dev, &ev, out);
		vb_lib.ack_async_event(&ev); /* only now may the object that it names be destroyed */
	}
	if (found)
		return 1;
	pthread_mutex_lock(&dev->lock);
	found = next_arrival(dev, out);
	pthread_mutex_unlock(&dev->lock);
	return found;
}

static int nap_ms(struct vb_device *dev, uint64_t left_ns)
{
	int ms = left_ns > INT32_MAX * UINT64_C(1000000) ? INT32_MAX : (int)((left_ns + 999999) / 1000000);

	pthread_mutex_lock(&dev->lock);
	if (!LIST_EMPTY(&dev->waiting) && ms > ARRIVAL_POLL_MS)
		ms = ARRIVAL_POLL_MS;
	pthread_mutex_unlock(&dev->lock);
	return ms;
}

int vb_get_async_event(rwf_device *base, int timeout_ms, struct rwf_async_event *out)
{
	struct vb_device *dev = (struct vb_device *)base;
	struct pollfd fds[] = {{dev->ctx->async_fd, POLLIN, 0}, {dev->kick_fd, POLLIN, 0}};
	uint64_t end = rwb_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * RWB_NS_PER_MS, now;

	for (;;) {
		if (next_event(dev, out))
			return 1;
		now = rwb_now_ns();
		if (now >= end)
			return 0;
		if (poll(fds, 2, nap_ms(dev, end - now)) > 0 && fds[1].revents)
			rwb_clear(dev->kick_fd);
	}
}

#endif
