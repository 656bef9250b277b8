/* A session's lanes: describing and connecting them. */
#include "library.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int rw_endpoint(rw_session *s, uint32_t lane, struct rw_endpoint *out)
{
	const char *at = (const char *)s->staging + (size_t)lane * s->nstaging * s->cfg.chunk_bytes;
	int n = session_usable(s);

	_Static_assert((int)RW_ENDPOINT_BYTES == (int)RWF_ENDPOINT_MAX,
		       "an endpoint of the transport fits into that of the interface");
	if (n)
		return n;
	if (lane >= s->cfg.nlanes)
		return rwf_fail(EINVAL, "endpoint: lane %u of %u", lane, s->cfg.nlanes);
	if (out->size < sizeof *out)
		return rwf_fail(EINVAL, "endpoint: its size is %u: set it to sizeof(struct rw_endpoint), %zu", out->size,
				sizeof *out);
	n = rwf_qp_endpoint(s->lanes[lane].qp, out->bytes, sizeof out->bytes);
	if (n < 0)
		return n;
	out->length = (uint32_t)n;
	out->addr = (uintptr_t)at;
	pthread_mutex_lock(&s->lock);
	out->rkey = session_memory(s, at)->mr[s->lanes[lane].nic].rkey;
	pthread_mutex_unlock(&s->lock);
	out->staging = s->nstaging;
	return 0;
}

/* Connects a lane's queue pair. */
static int meet(struct rw_session *s, uint32_t lane, const struct rw_endpoint *peer, const struct rw_connect *how)
{
	struct rw_worker_lane *l = &s->lanes[lane];
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
	l->slot_addr = peer->addr;
	l->slot_rkey = peer->rkey;
	return explain(s->worker, rw_worker_resume(s->worker, lane, l, 0));
}

int rw_connect(rw_session *s, const struct rw_endpoint *peers, uint32_t npeers, const struct rw_connect *how)
{
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (s->connected)
		return rwf_fail(EISCONN, "connect: the session is connected");
	if (npeers != s->cfg.nlanes)
		return rwf_fail(EINVAL, "connect: ends of %u lanes: the session has %u", npeers, s->cfg.nlanes);
	rc = rw_worker_claim(s->worker);
	if (rc)
		return rc;
	for (uint32_t i = 0; !rc && i < npeers; i++)
		rc = meet(s, i, &peers[i], how);
	rw_worker_release(s->worker);
	s->connected = !rc;
	return rc;
}
