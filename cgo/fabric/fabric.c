/* The contract's entry points. They make the checks that are common to all providers, then call the provider. */
#include "base/provider.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { PROVIDERS_MAX = 8 };
/* Fastest first, NULL after the last. */
static const struct rwf_ops *providers[PROVIDERS_MAX + 1] = {&rwf_shm_ops, &rwf_ibv_ops, &rwf_tcp_ops};

int rwf_provide(const struct rwf_ops *ops)
{
	int n = 0;

	while (providers[n])
		n++;
	if (n == PROVIDERS_MAX)
		return rwf_fail(ENOSPC, "provide %s: there are %d providers already", ops->name, n);
	providers[n] = ops;
	return 0;
}

const char *rwf_provider(int i)
{
	return providers[i] ? providers[i]->name : NULL;
}

static const struct rwf_ops *find(const char *provider)
{
	for (int i = 0; providers[i]; i++)
		if (strcmp(providers[i]->name, provider) == 0)
			return providers[i];
	char known[128] = "";
	for (int i = 0; providers[i]; i++)
		snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", providers[i]->name);
	rwf_fail(ENOENT, "unknown provider \"%s\": use one of %s", provider, known);
	return NULL;
}

int rwf_has_nics(const char *provider)
{
	const struct rwf_ops *ops = find(provider);

	return ops && ops->nics;
}

int rwf_open(const char *provider, const char *device, const char *options, rwf_device **out)
{
	const struct rwf_ops *ops = find(provider);

	if (!ops)
		return -ENOENT;
	return ops->open(device ? device : "", options ? options : "", out);
}

int rwf_list(const char *provider, char *buf, size_t cap)
{
	const struct rwf_ops *ops = find(provider);

	if (!ops)
		return -ENOENT;
	return ops->list(buf, cap);
}

int rwf_close(rwf_device *dev)
{
	if (dev->users)
		return rwf_fail(EBUSY, "close device %s: %u protection domains and completion queues of it are open",
				dev->attr.name, dev->users);
	return dev->ops->close(dev);
}

int rwf_query(rwf_device *dev, struct rwf_device_attr *out)
{
	*out = dev->attr;
	return 0;
}

/* Counts a user of an object by the result of the call that made it, or ended it. Returns the result. */
static int add_user(_Atomic uint32_t *users, int rc)
{
	*users += rc == 0;
	return rc;
}

static int remove_user(_Atomic uint32_t *users, int rc)
{
	*users -= rc == 0;
	return rc;
}

int rwf_alloc_pd(rwf_device *dev, rwf_pd **out)
{
	return add_user(&dev->users, dev->ops->alloc_pd(dev, out));
}

int rwf_dealloc_pd(rwf_pd *pd)
{
	rwf_device *dev = pd->dev;

	if (pd->users)
		return rwf_fail(EBUSY, "deallocate protection domain: %u queue pairs and memory regions of it are open", pd->users);
	return remove_user(&dev->users, pd->ops->dealloc_pd(pd));
}

int rwf_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	int rights = access & ((1 << RWF_ACCESS_PEER_SHIFT) - 1);

	if (!addr || length == 0)
		return rwf_fail(EINVAL, "register memory: the range is empty");
	if (length > UINT64_MAX - (uintptr_t)addr)
		return rwf_fail(EINVAL, "register memory: %zu bytes at %p pass the end of the address space", length, addr);
	if (access < 0 || access >> RWF_ACCESS_PEER_SHIFT > RWF_ACCESS_PEER_MAX ||
	    rights & ~(RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE))
		return rwf_fail(EINVAL, "register memory: access 0x%x is not made of local write and remote write", access);
	if (rights == RWF_ACCESS_REMOTE_WRITE)
		return rwf_fail(EINVAL, "register memory: remote write needs local write too (ibv_reg_mr(3))");
	return add_user(&pd->users, pd->ops->reg_mr(pd, addr, length, access, fd, fd_offset, out));
}

int rwf_dereg_mr(rwf_pd *pd, uint32_t lkey)
{
	return remove_user(&pd->users, pd->ops->dereg_mr(pd, lkey));
}

int rwf_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out)
{
	if (cqe == 0 || cqe > dev->attr.max_cqe)
		return rwf_fail(EINVAL, "create completion queue: %u entries, the device %s allows 1 to %u", cqe, dev->attr.name,
				dev->attr.max_cqe);
	return add_user(&dev->users, dev->ops->create_cq(dev, cqe, out));
}

int rwf_destroy_cq(rwf_cq *cq)
{
	rwf_device *dev = cq->dev;

	if (cq->users)
		return rwf_fail(EBUSY, "destroy completion queue: %u queue pairs use it", cq->users);
	return remove_user(&dev->users, cq->ops->destroy_cq(cq));
}

int rwf_poll_cq(rwf_cq *cq, struct rwf_wc *wc, int n)
{
	return cq->ops->poll_cq(cq, wc, n);
}

int rwf_req_notify_cq(rwf_cq *cq, uint32_t count)
{
	return cq->ops->req_notify_cq(cq, count);
}

int rwf_wait_cq(rwf_cq *cq, int64_t timeout_us)
{
	return cq->ops->wait_cq(cq, timeout_us);
}

void rwf_rest_cq(rwf_cq *cq)
{
	if (cq->ops->rest_cq)
		cq->ops->rest_cq(cq);
}

int rwf_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	const uint32_t known = RWF_QP_BY_REFERENCE | RWF_QP_IMM_ONLY;
	const struct rwf_device_attr *attr = &pd->dev->attr;
	int rc;

	if (init->max_send_wr == 0 || init->max_send_wr > attr->max_qp_wr || init->max_recv_wr == 0 ||
	    init->max_recv_wr > attr->max_qp_wr)
		return rwf_fail(EINVAL, "create queue pair: %u sends and %u receives, the device %s allows 1 to %u",
				init->max_send_wr, init->max_recv_wr, attr->name, attr->max_qp_wr);
	if (init->max_inline > attr->max_inline)
		return rwf_fail(EINVAL, "create queue pair: %u bytes inline, the device %s allows %u", init->max_inline, attr->name,
				attr->max_inline);
	if (!init->cq || init->cq->dev != pd->dev)
		return rwf_fail(EINVAL, "create queue pair: it needs a completion queue of its device %s", attr->name);
	if (init->flags & ~known)
		return rwf_fail(EINVAL, "create queue pair: flags 0x%x are unknown", init->flags & ~known);
	rc = pd->ops->create_qp(pd, init, out);
	if (rc == 0) {
		(*out)->cq = init->cq;
		(*out)->peer = init->peer;
	}
	return add_user(&pd->users, add_user(&init->cq->users, rc));
}

int rwf_destroy_qp(rwf_qp *qp)
{
	_Atomic uint32_t *of_pd = &qp->pd->users, *of_cq = &qp->cq->users;

	return remove_user(of_pd, remove_user(of_cq, qp->ops->destroy_qp(qp)));
}

uint32_t rwf_qp_num(const rwf_qp *qp)
{
	return qp->num;
}

int rwf_qp_state(const rwf_qp *qp)
{
	return qp->state;
}

int rwf_qp_endpoint(rwf_qp *qp, void *buf, size_t cap)
{
	if (cap < RWF_ENDPOINT_MAX)
		return rwf_fail(EINVAL, "read endpoint: %zu bytes of room: give %d", cap, RWF_ENDPOINT_MAX);
	return qp->ops->qp_endpoint(qp, buf);
}

int rwf_connect_qp(rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr)
{
	struct rwf_connect_attr a = *attr;

	if (qp->state != RWF_QPS_INIT)
		return rwf_fail(EISCONN, "connect queue pair 0x%x: it was connected before; make a new one", qp->num);
	if (a.rnr_timeout_ms == 0)
		a.rnr_timeout_ms = 1000;
	if (a.ack_timeout_ms == 0)
		a.ack_timeout_ms = 1000;
	if (a.timeout_ms == 0)
		a.timeout_ms = 5000;
	return qp->ops->connect_qp(qp, peer, len, &a);
}

int rwf_fail_qp(rwf_qp *qp)
{
	return qp->ops->fail_qp(qp);
}

int rwf_post_send(rwf_qp *qp, const struct rwf_send_wr *wr, int n)
{
	return qp->ops->post_send(qp, wr, n);
}

int rwf_post_recv(rwf_qp *qp, uint64_t wr_id, int n)
{
	return qp->ops->post_recv(qp, wr_id, n);
}

void *rwf_map(rwf_qp *qp, uint32_t rkey, uint64_t raddr, uint32_t length)
{
	if (qp->ops->map)
		return qp->ops->map(qp, rkey, raddr, length);
	rwf_fail(ENOTSUP, "map on queue pair 0x%x: provider %s does not map the peer's memory: post the payload", qp->num,
		 qp->ops->name);
	return NULL;
}

int rwf_map_all(rwf_qp *const *qps, const uint32_t *rkeys, const uint64_t *raddrs, uint32_t length, int n, uint64_t *out)
{
	int mapped = 0;

	for (int i = 0; i < n; i++) {
		out[i] = (uintptr_t)rwf_map(qps[i], rkeys[i], raddrs[i], length);
		mapped += out[i] != 0;
	}
	return mapped;
}

int rwf_get_async_event(rwf_device *dev, int timeout_ms, struct rwf_async_event *out)
{
	return dev->ops->get_async_event(dev, timeout_ms, out);
}
