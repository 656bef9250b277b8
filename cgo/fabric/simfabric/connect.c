/* Finding the peer, and notifying the owner. */
#include "world.h"

#include <errno.h>
#include <string.h>

/* The information about a queue pair that its peer needs, in the process's own byte order. */
struct endpoint {
	uint32_t magic, world, device, qp_num;
};

static const uint32_t endpoint_magic = 0x6d697352; /* "Rsim" */

int sim_qp_endpoint(rwf_qp *base, void *buf)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct endpoint e = {endpoint_magic, (uint32_t)sim_of(qp)->id, qp->dev->id, base->num};

	memcpy(buf, &e, sizeof e);
	return sizeof e;
}

static struct sim_qp *find(struct rwf_sim *w, uint32_t qp_num)
{
	struct sim_device *d;
	struct rwb_qp *qp;

	LIST_FOREACH(d, &w->devices, entry)
		LIST_FOREACH(qp, &d->base.qps, of_device)
			if (qp->head.num == qp_num)
				return (struct sim_qp *)qp;
	return NULL;
}

static void wait_for(struct sim_qp *qp, uint32_t peer, uint32_t timeout_ms)
{
	qp->base.head.state = RWF_QPS_RTR;
	qp->wanted = peer;
	sim_at(qp, SIM_GIVE_UP, sim_of(qp)->now_ns + (uint64_t)timeout_ms * 1000000);
}

static void establish(struct sim_qp *qp, struct sim_qp *peer)
{
	qp->peer = peer;
	peer->peer = qp;
	sim_cancel(peer, SIM_GIVE_UP);
	qp->base.head.state = RWF_QPS_RTS;
	peer->base.head.state = RWF_QPS_RTS;
	sim_log(sim_of(qp), "connect", qp->base.head.num, peer->base.head.num, 0);
	sim_raise(peer, RWF_EVENT_QP_ESTABLISHED);
}

static int go_to(struct sim_qp *qp, const struct endpoint *e, uint32_t timeout_ms, int cancel_fd)
{
	const uint64_t slice_ns = 10000000; /* interval between checks of cancel_fd */
	struct rwf_sim *w = sim_of(qp);
	uint64_t until_ns = w->now_ns + (uint64_t)timeout_ms * 1000000;
	int rc = 0;

	for (;;) {
		struct sim_qp *peer = find(w, e->qp_num);

		if (peer && peer->dev->id == e->device && peer->base.head.state == RWF_QPS_RTR &&
		    peer->wanted == qp->base.head.num && !peer->dev->dead && !peer->dev->down && !qp->dev->down) {
			establish(qp, peer);
			break;
		}
		if (!w->automatic)
			w->now_ns = until_ns;
		if (w->now_ns >= until_ns) {
			rc = rwf_fail(ETIMEDOUT,
				      "connect queue pair 0x%x: queue pair 0x%x of device %u did not wait for it within %u ms",
				      qp->base.head.num, e->qp_num, e->device, timeout_ms);
			break;
		}
		if ((rc = rwb_connect_wait(-1, 0, cancel_fd, 0)) < 0)
			break;
		sim_sleep(w, qp->base.head.cq->wake_fd,
			  cancel_fd > 0 && until_ns - w->now_ns > slice_ns ? w->now_ns + slice_ns : until_ns);
	}
	return rc;
}

int sim_connect_qp(rwf_qp *base, const void *peer, size_t len, const struct rwf_connect_attr *attr)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	struct rwf_sim *w = sim_of(qp);
	struct endpoint e;
	int rc = 0;

	if (len != sizeof e)
		return rwf_fail(EINVAL, "connect queue pair 0x%x: an endpoint has %zu bytes, not %zu", base->num, sizeof e, len);
	memcpy(&e, peer, sizeof e);
	if (e.magic != endpoint_magic || e.world != (uint32_t)w->id)
		return rwf_fail(EINVAL, "connect queue pair 0x%x: the endpoint is not of provider sim, world %d", base->num, w->id);
	sim_lock(w);
	qp->rnr_timeout_ns = (uint64_t)attr->rnr_timeout_ms * 1000000;
	qp->ack_timeout_ns = (uint64_t)attr->ack_timeout_ms * 1000000;
	if (attr->active)
		rc = go_to(qp, &e, attr->timeout_ms, attr->cancel_fd);
	else
		wait_for(qp, e.qp_num, attr->timeout_ms);
	sim_unlock(w);
	return rc;
}

static bool next_event(struct sim_device *dev, struct rwf_async_event *out)
{
	if (!dev->events)
		return rwb_take_event(&dev->base, out);
	*out = (struct rwf_async_event){(uint32_t)__builtin_ctz(dev->events), 0};
	dev->events &= dev->events - 1;
	return true;
}

int sim_get_async_event(rwf_device *base, int timeout_ms, struct rwf_async_event *out)
{
	struct sim_device *dev = (struct sim_device *)base;
	struct rwf_sim *w = dev->world;
	uint64_t until_ns;
	int got;

	sim_lock(w);
	until_ns = w->now_ns + (timeout_ms > 0 && w->automatic ? (uint64_t)timeout_ms * 1000000 : 0);
	while (!(got = next_event(dev, out)) && w->now_ns < until_ns)
		sim_sleep(w, dev->base.event_fd, until_ns);
	sim_unlock(w);
	return got;
}
