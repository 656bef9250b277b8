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

static int unknown_option(const char *provider, const char *key, int len, const struct rwb_option *known, size_t n)
{
	char names[128] = "";

	for (size_t i = 0; i < n; i++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", known[i].key);
	return rwf_fail(EINVAL, "provider %s has no option \"%.*s\": it has %s", provider, len, key, names);
}

static int take_option(const char *provider, const struct rwb_option *o, const char *value, size_t len)
{
	char text[RWB_OPTION_TEXT], *end;
	long v;

	snprintf(text, sizeof text, "%.*s", (int)len, value);
	if (o->text) {
		memcpy(o->text, text, sizeof text);
		return 0;
	}
	if (o->words[0]) {
		*o->number = strcmp(text, o->words[1]) == 0;
		if (*o->number || strcmp(text, o->words[0]) == 0)
			return 0;
		return rwf_fail(EINVAL, "provider %s: option %s=%s: give %s or %s", provider, o->key, text, o->words[0],
				o->words[1]);
	}
	v = strtol(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || v < o->low || v > o->high)
		return rwf_fail(EINVAL, "provider %s: option %s=%s is not a number from %d to %d", provider, o->key, text, o->low,
				o->high);
	*o->number = (int)v;
	return 0;
}

int rwb_read_options(const char *provider, const char *options, const struct rwb_option *known, size_t n)
{
	for (const char *s = options, *end; *s; s = end + strspn(end, ", ")) {
		size_t len = strcspn(s, "=,"), i = 0;
		const char *value = s + len + (s[len] == '=');
		int rc;

		end = value + strcspn(value, ",");
		while (i < n && (strlen(known[i].key) != len || memcmp(s, known[i].key, len) != 0))
			i++;
		rc = i < n ? take_option(provider, &known[i], value, (size_t)(end - value))
			   : unknown_option(provider, s, (int)len, known, n);
		if (rc)
			return rc;
	}
	return 0;
}

int rwb_check_send(const rwf_qp *qp, const struct rwf_send_wr *wr, uint32_t max_inline, uint32_t device_flags)
{
	enum { KNOWN = RWF_SEND_SIGNALED | RWF_SEND_INLINE | RWF_SEND_PAST_CACHE | RWF_SEND_PLACED | RWF_SEND_SOLICITED };

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
