/* Joining and leaving a job: sessions of programs that rackweave run started. */
#include "control.h"
#include "library.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPIN = 64 };

/* Copies a text where there is room for it. */
static int put_text(char *to, size_t cap, const char *text, const char *what)
{
	size_t n = text ? strlen(text) : 0;

	if (n >= cap)
		return rwf_fail(EINVAL, "%s \"%.40s…\": use at most %zu bytes", what, text, cap - 1);
	if (n)
		memcpy(to, text, n);
	return 0;
}

/* The providers that have a device here, the fastest first; where devices have links, one with a link. */
static void list_providers(char *out, size_t cap)
{
	size_t used = 0;

	for (int i = 0; rwf_provider(i); i++) {
		const char *provider = rwf_provider(i);
		char names[4096];
		rwf_device *dev;
		int rc;

		if (rwf_list(provider, names, sizeof names) <= 0 || (rc = rwf_open(provider, "", "", &dev)) == -ENETDOWN)
			continue;
		used += (size_t)snprintf(out + used, cap - used, "%s%s", used ? "," : "", provider);
		if (rc == 0)
			rwf_close(dev); /* nothing of it is open */
	}
}

static int describe_job(const struct rw_job *job, struct control_join *r)
{
	const char *provider = job->provider ? job->provider : "auto";
	int rc;

	if (job->size < offsetof(struct rw_job, policy))
		return rwf_fail(EINVAL, "join: the job's size is %u: set it to sizeof(struct rw_job), %zu", job->size, sizeof *job);
	if (job->nhyper > CONTROL_HYPERS)
		return rwf_fail(EINVAL, "join: %u hyper-parameters: use at most %d", job->nhyper, CONTROL_HYPERS);
	*r = (struct control_join){.chunk_bytes = job->chunk_bytes,
				   .timeout_ms = job->timeout_ms,
				   .pid = (uint32_t)getpid(),
				   .uid = geteuid(),
				   .nhyper = job->nhyper};
	if ((rc = put_text(r->mode, sizeof r->mode, job->mode, "mode")) ||
	    (rc = put_text(r->optimizer, sizeof r->optimizer, job->optimizer, "optimizer")) ||
	    (rc = put_text(r->provider, sizeof r->provider, provider, "provider")) ||
	    (job->size >= offsetof(struct rw_job, compress) &&
	     (rc = put_text(r->policy, sizeof r->policy, job->policy, "policy"))) ||
	    (job->size >= sizeof *job && (rc = put_text(r->compress, sizeof r->compress, job->compress, "compress"))))
		return rc;
	for (uint32_t i = 0; i < job->nhyper; i++) {
		r->hyper[i].value = job->hyper[i].value;
		rc = put_text(r->hyper[i].name, sizeof r->hyper[i].name, job->hyper[i].name, "hyper-parameter");
		if (rc)
			return rc;
	}
	if (job->provider)
		strcpy(r->providers, r->provider);
	else
		list_providers(r->providers, sizeof r->providers);
	return 0;
}

static int open_joined(const struct control_joined *j, rw_session **session)
{
	struct rw_config cfg = {
		.size = sizeof cfg,
		.rank = j->rank,
		.provider = j->provider,
		.lane_nics = j->lane_nics,
		.nlanes = j->nlanes,
		.chunk_bytes = j->chunk_bytes,
		.window = j->window,
		.send_depth = j->send_depth,
		.recv_depth = j->recv_depth,
		.local_workers = j->local_workers,
		.spin = SPIN,
		.by_reference = (uint8_t)j->by_reference,
		.live_hyper = (uint8_t)j->live_hyper,
		.steps = (uint8_t)j->steps,
		.answers = (uint8_t)j->answers,
	};

	memcpy(cfg.record, j->record, sizeof cfg.record);
	return rw_open(&cfg, session);
}

static int attach(rw_session *s, uint32_t link_timeout_ms)
{
	const struct rw_connect how = {
		.size = sizeof how, .timeout_ms = s->timeout_ms ? s->timeout_ms : 10000, .ack_timeout_ms = link_timeout_ms};
	struct {
		struct control_connect how;
		struct rw_endpoint ends[RW_MAX_LANES];
	} request = {.how = {link_timeout_ms, s->timeout_ms}};
	struct rw_endpoint peers[RW_MAX_LANES];
	const uint32_t nlanes = s->cfg.nlanes;
	uint32_t n = nlanes * (uint32_t)sizeof *peers;
	void *answer = peers;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < nlanes; i++) {
		request.ends[i].size = sizeof *request.ends;
		rc = rw_endpoint(s, i, &request.ends[i]);
	}
	if (!rc)
		rc = control_call(s->control, CONTROL_CONNECT, &request, (uint32_t)sizeof request.how + n, &answer, &n,
				  s->timeout_ms);
	return rc ? rc : rw_connect(s, peers, nlanes, &how);
}

/* Opens the session of a worker that has joined. */
static int begin(int control, const struct control_joined *j, uint32_t timeout_ms, rw_session **session)
{
	char why[256];
	int rc = open_joined(j, session);

	if (rc) {
		close(control);
		return rc;
	}
	(*session)->control = control;
	(*session)->workers = j->workers;
	(*session)->timeout_ms = timeout_ms;
	(*session)->gradients = j->gradients;
	rc = attach(*session, j->link_timeout_ms);
	if (!rc && j->decides)
		rc = codecs_follow(*session);
	if (rc) {
		snprintf(why, sizeof why, "%s", rwf_last_error());
		rw_abort(*session, why);
		rw_close(*session);
		*session = NULL;
		return rwf_fail(-rc, "%s", why);
	}
	return 0;
}

int rw_join(const struct rw_job *job, rw_session **session)
{
	struct control_join request;
	struct control_joined joined;
	uint32_t n = sizeof joined;
	void *answer = &joined;
	int rc = describe_job(job, &request), control;

	if (rc)
		return rc;
	control = control_open();
	if (control < 0)
		return control;
	rc = control_call(control, CONTROL_JOIN, &request, sizeof request, &answer, &n, job->timeout_ms);
	if (rc) {
		close(control);
		return rc;
	}
	return begin(control, &joined, job->timeout_ms, session);
}

/* A call of a session that rw_join made. */
static int call(rw_session *s, uint32_t kind, void *request, uint32_t bytes, void **answer, uint32_t *n)
{
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (s->control < 0)
		return rwf_fail(ENOTCONN, "the session was not made by rw_join: make the aggregator's calls yourself");
	pthread_mutex_lock(&s->control_lock);
	rc = control_call(s->control, kind, request, bytes, answer, n, s->timeout_ms);
	pthread_mutex_unlock(&s->control_lock);
	return rc;
}

static int describe_parameter(const struct rw_parameter *p, struct control_tensor *t, struct rw_tensor *local)
{
	if (p->size != sizeof *p)
		return rwf_fail(EINVAL, "register: a parameter's size is %u: set it to sizeof(struct rw_parameter), %zu", p->size,
				sizeof *p);
	if (p->ndim > CONTROL_DIMS)
		return rwf_fail(EINVAL, "register \"%s\": %u dimensions: use at most %d", p->name, p->ndim, CONTROL_DIMS);
	if (p->rows > RW_SPARSE_STANDARD || (p->rows && !p->ndim))
		return rwf_fail(EINVAL,
				"register \"%s\": rows is %u, with %u dimensions: use enum rw_rows, and RW_DENSE for a scalar",
				p->name, p->rows, p->ndim);
	*t = (struct control_tensor){
		.ndim = p->ndim, .wire_type = p->wire_type, .rows = p->rows, .lr_mult = p->lr_mult, .wd_mult = p->wd_mult};
	*local = (struct rw_tensor){.size = sizeof *local, .wire_type = p->wire_type, .memory_type = p->memory_type, .elems = 1};
	for (uint32_t i = 0; i < p->ndim; i++) {
		t->shape[i] = p->shape[i];
		local->elems *= p->shape[i];
	}
	if (p->rows && p->shape[0])
		local->width = (uint32_t)(local->elems / p->shape[0]);
	return put_text(t->name, sizeof t->name, p->name, "register");
}

static int register_all(rw_session *s, const struct rw_parameter *parameters, uint32_t n, struct control_register *request,
			struct rw_tensor *local)
{
	struct control_tensor *t = (struct control_tensor *)(request + 1);
	const uint32_t first = s->ntensors;
	void *lanes = NULL;
	uint32_t bytes;
	int rc = 0;

	*request = (struct control_register){n, s->timeout_ms};
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = describe_parameter(&parameters[i], &t[i], &local[i]);
	if (!rc)
		rc = call(s, CONTROL_REGISTER, request, (uint32_t)(sizeof *request + n * sizeof *t), &lanes, &bytes);
	if (!rc)
		rc = rw_add(s, local, n, lanes, bytes / sizeof(uint32_t));
	for (uint32_t i = 0; !rc && s->gradients.id && i < n; i++)
		rc = rw_compress(s, first + i, &s->gradients);
	free(lanes);
	return rc;
}

int rw_register(rw_session *s, const struct rw_parameter *parameters, uint32_t n)
{
	const uint32_t most = (CONTROL_MAX_BYTES - sizeof(struct control_register)) / sizeof(struct control_tensor);
	struct control_register *request;
	struct rw_tensor *local;
	int rc = session_usable(s);

	if (rc)
		return rc;
	if (n == 0 || n > most)
		return rwf_fail(EINVAL, "register: %u tensors: use 1 to %u in one call", n, most);
	request = malloc(sizeof *request + n * sizeof(struct control_tensor));
	local = malloc(n * sizeof *local);
	rc = request && local ? register_all(s, parameters, n, request, local)
			      : rwf_fail(ENOMEM, "register: no memory for %u tensors", n);
	free(request);
	free(local);
	return rc;
}

/* Makes a call that has no answer. */
static int tell(rw_session *s, uint32_t kind, const char *what, const char *text, double value)
{
	struct control_tell request = {.value = value, .timeout_ms = s->timeout_ms};
	void *answer = &request;
	uint32_t n = 0;
	int rc = put_text(request.text, sizeof request.text, text, what);

	return rc ? rc : call(s, kind, &request, sizeof request, &answer, &n);
}

int rw_barrier(rw_session *s, const char *name)
{
	return tell(s, CONTROL_BARRIER, "barrier", name, 0);
}

int rw_set_policy(rw_session *s, const char *policy)
{
	return tell(s, CONTROL_POLICY, "policy", policy, 0);
}

int rw_report_loss(rw_session *s, double loss)
{
	return tell(s, CONTROL_LOSS, "loss", "", loss);
}

static void leave(struct rw_session *s)
{
	char failure[256] = "";

	if (s->control < 0)
		return;
	rw_failure(s, failure, sizeof failure);
	if (!failure[0] && rw_worker_active(s->worker))
		strcpy(failure, "it was closed with operations in flight");
	tell(s, CONTROL_LEAVE, "leave", failure, 0);
	close(s->control); /* where the call failed, this tells the aggregator */
	s->control = -1;
	codecs_end(s);
}

int rw_close(rw_session *s)
{
	int rc;

	if (!s)
		return 0;
	rc = session_usable(s);
	if (rc)
		return rc;
	leave(s); /* the aggregator drops the connections first, or their end would be a failure */
	session_free(s);
	return 0;
}
