/* The contract's entry points: check what no provider should have to, then call the provider. */
#define _GNU_SOURCE /* ppoll */
#include "base/provider.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static _Thread_local char last_error[512];

const char *rwf_last_error(void)
{
	return last_error;
}

int rwf_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_error, sizeof last_error, fmt, ap);
	va_end(ap);
	return -err;
}

static const struct rwf_ops *const provider_ops[] = {&rwf_ibv_ops, &rwf_shm_ops, &rwf_tcp_ops, &rwf_sim_ops};
static const char *const provider_names[] = {"ibv", "shm", "tcp", "sim", NULL};
enum { PROVIDERS = sizeof provider_ops / sizeof *provider_ops };

const char *const *rwf_providers(void)
{
	return provider_names;
}

static const struct rwf_ops *find(const char *provider)
{
	for (int i = 0; i < PROVIDERS; i++)
		if (provider_ops[i] && strcmp(provider_names[i], provider) == 0)
			return provider_ops[i];
	rwf_fail(ENOENT, "unknown provider \"%s\": use one of ibv, shm, tcp, sim", provider);
	return NULL;
}

const char *rwf_wc_status_str(int status)
{
	switch (status) {
	case RWF_WC_SUCCESS: return "success";
	case RWF_WC_LOC_LEN_ERR: return "local length error";
	case RWF_WC_LOC_QP_OP_ERR: return "local queue pair operation error";
	case RWF_WC_LOC_PROT_ERR: return "local protection error";
	case RWF_WC_WR_FLUSH_ERR: return "work request flushed";
	case RWF_WC_REM_INV_REQ_ERR: return "remote invalid request error";
	case RWF_WC_REM_ACCESS_ERR: return "remote access error";
	case RWF_WC_REM_OP_ERR: return "remote operation error";
	case RWF_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
	case RWF_WC_RNR_RETRY_EXC_ERR: return "receiver-not-ready retry counter exceeded";
	case RWF_WC_FATAL_ERR: return "fatal error";
	case RWF_WC_GENERAL_ERR: return "general error";
	}
	return "unknown status";
}

static size_t key_length(const char *s)
{
	return strcspn(s, "=,");
}

int rwf_option(const char *options, const char *key, char *out, size_t cap)
{
	for (const char *s = options; s && *s;) {
		size_t k = key_length(s), v = strcspn(s + k, ",");

		if (k == strlen(key) && memcmp(s, key, k) == 0) {
			const char *value = s + k + (s[k] == '=');
			size_t n = (size_t)(s + k + v - value);

			snprintf(out, cap, "%.*s", (int)n, value);
			return 1;
		}
		s += k + v;
		s += *s == ',';
	}
	return 0;
}

int rwf_option_check(const char *provider, const char *options, const char *const *known)
{
	for (const char *s = options; s && *s;) {
		size_t k = key_length(s);
		int found = 0;

		for (const char *const *name = known; *name; name++)
			found |= strlen(*name) == k && memcmp(s, *name, k) == 0;
		if (!found) {
			char names[256] = "";

			for (const char *const *name = known; *name; name++) {
				strncat(names, name == known ? "" : ", ", sizeof(names) - strlen(names) - 1);
				strncat(names, *name, sizeof(names) - strlen(names) - 1);
			}
			return rwf_fail(EINVAL, "provider %s has no option \"%.*s\": it has %s", provider, (int)k, s, *names ? names : "none");
		}
		s += k;
		s += strcspn(s, ",");
		s += *s == ',';
	}
	return 0;
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
	return dev->ops->close(dev);
}

int rwf_query(rwf_device *dev, struct rwf_device_attr *out)
{
	memset(out, 0, sizeof *out);
	return dev->ops->query(dev, out);
}

int rwf_alloc_pd(rwf_device *dev, rwf_pd **out)
{
	return dev->ops->alloc_pd(dev, out);
}

int rwf_dealloc_pd(rwf_pd *pd)
{
	return pd->ops->dealloc_pd(pd);
}

int rwf_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t fd_offset, struct rwf_mr *out)
{
	if (!addr || length == 0)
		return rwf_fail(EINVAL, "register memory: the range is empty");
	return pd->ops->reg_mr(pd, addr, length, access, fd, fd_offset, out);
}

int rwf_dereg_mr(rwf_pd *pd, uint32_t lkey)
{
	return pd->ops->dereg_mr(pd, lkey);
}

int rwf_create_cq(rwf_device *dev, uint32_t cqe, rwf_cq **out)
{
	struct rwf_device_attr attr;
	int rc = rwf_query(dev, &attr);

	if (rc)
		return rc;
	if (cqe == 0 || cqe > attr.max_cqe)
		return rwf_fail(EINVAL, "create completion queue: %u entries, the device %s allows 1 to %u", cqe, attr.name,
				attr.max_cqe);
	return dev->ops->create_cq(dev, cqe, out);
}

int rwf_destroy_cq(rwf_cq *cq)
{
	return cq->ops->destroy_cq(cq);
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

int rwf_wake_cq(rwf_cq *cq)
{
	return cq->ops->wake_cq(cq);
}

int rwf_create_qp(rwf_pd *pd, const struct rwf_qp_init *init, rwf_qp **out)
{
	struct rwf_device_attr attr;
	int rc = rwf_query(pd->dev, &attr);

	if (rc)
		return rc;
	if (init->max_send_wr == 0 || init->max_send_wr > attr.max_qp_wr || init->max_recv_wr == 0 ||
	    init->max_recv_wr > attr.max_qp_wr)
		return rwf_fail(EINVAL, "create queue pair: %u sends and %u receives, the device %s allows 1 to %u",
				init->max_send_wr, init->max_recv_wr, attr.name, attr.max_qp_wr);
	return pd->ops->create_qp(pd, init, out);
}

int rwf_destroy_qp(rwf_qp *qp)
{
	return qp->ops->destroy_qp(qp);
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
	return qp->ops->qp_endpoint(qp, buf, cap);
}

int rwf_connect_qp(rwf_qp *qp, const void *peer, size_t len, const struct rwf_connect_attr *attr)
{
	struct rwf_connect_attr a = *attr;

	if (a.rnr_timeout_ms == 0)
		a.rnr_timeout_ms = 1000;
	if (a.ack_timeout_ms == 0)
		a.ack_timeout_ms = 1000;
	if (a.timeout_ms == 0)
		a.timeout_ms = 5000;
	return qp->ops->connect_qp(qp, peer, len, &a);
}

int rwf_connect_wait(int fd, short events, int cancel_fd, uint64_t ns)
{
	struct pollfd p[2] = {{fd, events, 0}, {cancel_fd > 0 ? cancel_fd : -1, POLLIN, 0}};
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	if (ppoll(p, 2, &t, NULL) < 0 && errno != EINTR)
		return rwf_fail(errno, "connect: poll: %s", strerror(errno));
	if (p[1].revents)
		return rwf_fail(ECANCELED, "connect: given up");
	return p[0].revents != 0;
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

int rwf_check_send(const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t max_inline, uint32_t device_flags)
{
	enum { KNOWN = RWF_SEND_SIGNALED | RWF_SEND_INLINE | RWF_SEND_STREAMING | RWF_SEND_PLACED };

	if (wr->opcode > RWF_WRITE_WITH_IMM)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: opcode %u is neither a write nor a write with immediate", qp->num,
				wr->opcode);
	if (wr->flags & ~KNOWN)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: flags 0x%x are unknown", qp->num, wr->flags & ~KNOWN);
	if (wr->flags & RWF_SEND_INLINE && wr->length > max_inline)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: %u bytes inline, it was created for %u", qp->num, wr->length,
				max_inline);
	if (!(wr->flags & RWF_SEND_PLACED))
		return 0;
	if (!(device_flags & RWF_DEV_MAPS))
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: a placed payload, but provider %s does not map the peer's memory: "
					"post the payload", qp->num, qp->ops->name);
	if (wr->opcode != RWF_WRITE_WITH_IMM || wr->flags & RWF_SEND_INLINE)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: a placed payload needs a write with immediate that is not inline",
				qp->num);
	return 0;
}

void *rwf_map(rwf_qp *qp, uint32_t rkey, uint64_t raddr, uint32_t length)
{
	if (qp->ops->map)
		return qp->ops->map(qp, rkey, raddr, length);
	rwf_fail(ENOTSUP, "map on queue pair 0x%x: provider %s does not map the peer's memory: post the payload", qp->num, qp->ops->name);
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
