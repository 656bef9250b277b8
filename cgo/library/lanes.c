/* A session's lanes: making, connecting and resuming them. */
#include "library.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int check_lane(const struct rw_session *s, uint32_t lane, const char *what)
{
	int rc = session_usable(s);

	if (!rc && lane >= s->cfg.nlanes)
		rc = rwf_fail(EINVAL, "%s: lane %u of %u", what, lane, s->cfg.nlanes);
	return rc;
}

static int describe(struct rw_session *s, uint32_t lane, struct rw_endpoint *out)
{
	const struct lane_end *l = &s->lanes[lane];
	const char *at = s->staging + (size_t)lane * s->nstaging * s->cfg.chunk_bytes;
	int n;

	_Static_assert((int)RW_ENDPOINT_BYTES == (int)RWF_ENDPOINT_MAX,
		       "an endpoint of the transport fits into that of the interface");
	if (out->size < sizeof *out)
		return rwf_fail(EINVAL, "endpoint: its size is %u: set it to sizeof(struct rw_endpoint), %zu", out->size,
				sizeof *out);
	n = rwf_qp_endpoint(l->qp, out->bytes, sizeof out->bytes);
	if (n < 0)
		return n;
	out->length = (uint32_t)n;
	out->addr = (uintptr_t)at;
	pthread_mutex_lock(&s->lock);
	out->rkey = session_memory(s, at)->mr[l->nic].rkey;
	pthread_mutex_unlock(&s->lock);
	out->staging = s->nstaging;
	return 0;
}

int rw_endpoint(rw_session *s, uint32_t lane, struct rw_endpoint *out)
{
	int rc = check_lane(s, lane, "endpoint");

	return rc ? rc : describe(s, lane, out);
}

/* Connects a lane's queue pair, and notes what the worker is told of it. */
static int meet(struct rw_session *s, uint32_t lane, const struct rw_endpoint *peer, const struct rw_connect *how)
{
	struct lane_end *l = &s->lanes[lane];
	struct rwf_connect_attr attr = {
		.active = 1, .timeout_ms = how->timeout_ms, .ack_timeout_ms = how->ack_timeout_ms, .cancel_fd = s->cancel};
	int rc;

	if (how->size < sizeof *how || peer->size < sizeof *peer || peer->length > sizeof peer->bytes)
		return rwf_fail(
			EINVAL,
			"connect lane %u: sizes of %u and %u, an endpoint of %u bytes: set sizes to those of the structs, %zu and %zu",
			lane, how->size, peer->size, peer->length, sizeof *how, sizeof *peer);
	rc = rwf_connect_qp(l->qp, peer->bytes, peer->length, &attr);
	if (rc)
		return rc;
	/* Only now: on a queue pair that did not connect nothing can have arrived. */
	rc = rwf_post_recv(l->qp, lane, (int)s->cfg.recv_depth);
	if (rc < 0)
		return rc;
	l->worker.qp = l->qp;
	l->worker.slot_addr = peer->addr;
	l->worker.slot_rkey = peer->rkey;
	return 0;
}

int rw_connect(rw_session *s, const struct rw_endpoint *peers, uint32_t npeers, const struct rw_connect *how)
{
	int rc = session_usable(s);

	if (!rc && s->connected)
		rc = rwf_fail(EISCONN, "connect: the session is connected");
	if (!rc && npeers != s->cfg.nlanes)
		rc = rwf_fail(EINVAL, "connect: ends of %u lanes: the session has %u", npeers, s->cfg.nlanes);
	for (uint32_t i = 0; !rc && i < npeers; i++)
		rc = meet(s, i, &peers[i], how);
	if (!rc) {
		s->connected = 1;
		s->resumable = how->resumable;
	}
	return rc;
}

int rw_broken(rw_session *s, uint8_t *lanes)
{
	int rc = session_usable(s);
	rw_worker *w = rc ? NULL : session_worker(s);

	return rc ? rc : w ? rw_worker_broken(w, lanes) : -EINVAL;
}

/* Claimed: makes the lane a queue pair on another NIC. */
static int move(struct rw_session *s, rw_worker *w, uint32_t lane, uint32_t nic, uint64_t *received)
{
	struct lane_end *l = &s->lanes[lane];
	int rc = rw_worker_detach(w, lane, received);

	if (rc)
		return rc;
	if (l->qp)
		rwf_destroy_qp(l->qp);
	l->qp = NULL;
	return session_queue_pair(s, lane, nic);
}

int rw_detach(rw_session *s, uint32_t lane, uint32_t nic, struct rw_endpoint *out, uint64_t *received)
{
	int rc = check_lane(s, lane, "detach");
	rw_worker *w = rc ? NULL : session_worker(s);

	if (!w)
		return rc ? rc : -EINVAL;
	if (!s->resumable || nic >= s->nnics)
		return rwf_fail(EINVAL, "detach lane %u for NIC %u of %u: the session must be connected as resumable", lane, nic,
				s->nnics);
	rc = rw_worker_claim(w);
	if (rc)
		return rc;
	rc = move(s, w, lane, nic, received);
	if (!rc)
		rc = describe(s, lane, out);
	rw_worker_release(w);
	return rc;
}

int rw_resume(rw_session *s, uint32_t lane, const struct rw_endpoint *peer, uint64_t peer_received, const struct rw_connect *how)
{
	int rc = check_lane(s, lane, "resume");
	rw_worker *w = rc ? NULL : session_worker(s);

	if (!w)
		return rc ? rc : -EINVAL;
	rc = rw_worker_claim(w);
	if (rc)
		return rc;
	if (!s->lanes[lane].qp)
		rc = rwf_fail(EINVAL, "resume lane %u: it has no queue pair: detach it first", lane);
	if (!rc)
		rc = meet(s, lane, peer, how);
	if (!rc)
		rc = rw_worker_resume(w, lane, &s->lanes[lane].worker, peer_received);
	rw_worker_release(w);
	return rc;
}

int rw_regions(rw_session *s, uint32_t nic, struct rw_region *regions, uint32_t cap)
{
	struct rwf_mr mrs[cap ? cap : 1];
	int rc = session_usable(s);
	rw_worker *w = rc ? NULL : session_worker(s);

	if (!w)
		return rc ? rc : -EINVAL;
	rc = rw_worker_regions(w, nic, mrs, cap);
	for (int i = 0; i < rc && (uint32_t)i < cap; i++)
		regions[i] = (struct rw_region){.addr = mrs[i].addr, .length = mrs[i].length, .rkey = mrs[i].rkey};
	return rc;
}

int rw_link_event(rw_session *s, uint32_t nic, uint32_t timeout_ms)
{
	struct rwf_async_event event;
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (nic >= s->nnics)
		return rwf_fail(EINVAL, "link of NIC %u of %u", nic, s->nnics);
	rc = rwf_get_async_event(s->nics[nic].dev, (int)timeout_ms, &event);
	if (rc < 0)
		return RW_LINK_LOST;
	if (rc == 0)
		return RW_LINK_NONE;
	switch (event.type) {
	case RWF_EVENT_PORT_ACTIVE:
		return RW_LINK_UP;
	case RWF_EVENT_PORT_ERR:
		return RW_LINK_DOWN;
	case RWF_EVENT_DEVICE_FATAL:
	case RWF_EVENT_CQ_ERR:
		return RW_LINK_LOST;
	default:
		return RW_LINK_NONE;
	}
}
