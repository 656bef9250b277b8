/* What every provider needs besides its queues: errors, options, the checks of a request. */
#include "provider.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

const char *rwf_qp_state_str(int state)
{
	switch (state) {
	case RWF_QPS_INIT: return "INIT";
	case RWF_QPS_RTR: return "RTR";
	case RWF_QPS_RTS: return "RTS";
	case RWF_QPS_ERR: return "ERR";
	}
	return "unknown state";
}

const char *rwf_async_type_str(uint32_t type)
{
	switch (type) {
	case RWF_EVENT_QP_ESTABLISHED: return "queue pair established";
	case RWF_EVENT_QP_FATAL: return "queue pair fatal";
	case RWF_EVENT_CQ_ERR: return "completion queue error";
	case RWF_EVENT_PORT_ACTIVE: return "port active";
	case RWF_EVENT_PORT_ERR: return "port error";
	case RWF_EVENT_DEVICE_FATAL: return "device fatal";
	}
	return "unknown event";
}

static size_t key_length(const char *s)
{
	return strcspn(s, "=,");
}

int rwb_option(const char *options, const char *key, char *out, size_t cap)
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

int rwb_option_check(const char *provider, const char *options, const char *const *known)
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

int rwb_check_send(const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t max_inline, uint32_t device_flags)
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
