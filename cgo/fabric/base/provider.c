/* Code that every provider needs besides its queues: errors, options, the checks of a request. */
#include "provider.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

static const char *name_of(uint32_t value, const char *const *names, size_t count, const char *none)
{
	return value < count && names[value] ? names[value] : none;
}

#define NAME_OF(value, names, none) name_of((uint32_t)(value), names, sizeof(names) / sizeof *(names), none)

const char *rwf_wc_status_str(int status)
{
	static const char *const names[] = {
		[RWF_WC_SUCCESS] = "success",
		[RWF_WC_LOC_LEN_ERR] = "local length error",
		[RWF_WC_LOC_QP_OP_ERR] = "local queue pair operation error",
		[RWF_WC_LOC_PROT_ERR] = "local protection error",
		[RWF_WC_WR_FLUSH_ERR] = "work request flushed",
		[RWF_WC_REM_INV_REQ_ERR] = "remote invalid request error",
		[RWF_WC_REM_ACCESS_ERR] = "remote access error",
		[RWF_WC_REM_OP_ERR] = "remote operation error",
		[RWF_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
		[RWF_WC_RNR_RETRY_EXC_ERR] = "receiver-not-ready retry counter exceeded",
		[RWF_WC_FATAL_ERR] = "fatal error",
		[RWF_WC_GENERAL_ERR] = "general error",
	};

	return NAME_OF(status, names, "unknown status");
}

const char *rwf_qp_state_str(int state)
{
	static const char *const names[] = {
		[RWF_QPS_INIT] = "INIT", [RWF_QPS_RTR] = "RTR", [RWF_QPS_RTS] = "RTS", [RWF_QPS_ERR] = "ERR"};

	return NAME_OF(state, names, "unknown state");
}

const char *rwf_async_type_str(uint32_t type)
{
	static const char *const names[] = {
		[RWF_EVENT_QP_ESTABLISHED] = "queue pair established",
		[RWF_EVENT_QP_FATAL] = "queue pair fatal",
		[RWF_EVENT_CQ_ERR] = "completion queue error",
		[RWF_EVENT_PORT_ACTIVE] = "port active",
		[RWF_EVENT_PORT_ERR] = "port error",
		[RWF_EVENT_DEVICE_FATAL] = "device fatal",
	};

	return NAME_OF(type, names, "unknown event");
}

static size_t key_length(const char *s)
{
	return strcspn(s, "=,");
}

static const char *next_option(const char *s)
{
	s += strcspn(s, ",");
	s += *s == ',';
	return s + (*s == ' ');
}

int rwb_option(const char *options, const char *key, char *out, size_t cap)
{
	for (const char *s = options; *s; s = next_option(s)) {
		size_t k = key_length(s);

		if (k == strlen(key) && memcmp(s, key, k) == 0) {
			s += k + (s[k] == '=');
			snprintf(out, cap, "%.*s", (int)strcspn(s, ","), s);
			return 1;
		}
	}
	return 0;
}

int rwb_option_number(const char *provider, const char *options, const char *key, int low, int high, int *out)
{
	char text[32], *end;
	long v;

	if (!rwb_option(options, key, text, sizeof text))
		return 0;
	v = strtol(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || v < low || v > high)
		return rwf_fail(EINVAL, "provider %s: option %s=%s is not a number from %d to %d", provider, key, text, low, high);
	*out = (int)v;
	return 0;
}

int rwb_option_check(const char *provider, const char *options, const char *known)
{
	char key[64], value[1];

	for (const char *s = options; *s; s = next_option(s)) {
		snprintf(key, sizeof key, "%.*s", (int)key_length(s), s);
		if (!rwb_option(known, key, value, sizeof value))
			return rwf_fail(EINVAL, "provider %s has no option \"%s\": it has %s", provider, key, known);
	}
	return 0;
}

int rwb_check_send(const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t max_inline, uint32_t device_flags)
{
	enum { KNOWN = RWF_SEND_SIGNALED | RWF_SEND_INLINE | RWF_SEND_STREAMING | RWF_SEND_PLACED };

	if (wr->opcode > RWF_WRITE_WITH_IMM)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: opcode %u is neither a write nor a write with immediate",
				qp->num, wr->opcode);
	if (wr->flags & ~KNOWN)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: flags 0x%x are unknown", qp->num, wr->flags & ~KNOWN);
	if (wr->flags & RWF_SEND_INLINE && wr->length > max_inline)
		return rwf_fail(EINVAL, "post send on queue pair 0x%x: %u bytes inline, it was created for %u", qp->num, wr->length,
				max_inline);
	if (!(wr->flags & RWF_SEND_PLACED))
		return 0;
	if (!(device_flags & RWF_DEV_MAPS))
		return rwf_fail(EINVAL,
				"post send on queue pair 0x%x: a placed payload, but provider %s does not map the peer's memory: "
				"post the payload",
				qp->num, qp->ops->name);
	if (wr->opcode != RWF_WRITE_WITH_IMM || wr->flags & RWF_SEND_INLINE)
		return rwf_fail(EINVAL,
				"post send on queue pair 0x%x: a placed payload needs a write with immediate that is not inline",
				qp->num);
	return 0;
}
