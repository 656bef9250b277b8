/* The devices a session uses. */
#include "library.h"

#include <errno.h>
#include <string.h>

enum { NAMES_CAP = 16 << 10 };

static int open_one(const struct rw_config *cfg, const char *name, struct nic *n)
{
	uint64_t cqe = (uint64_t)cfg->nlanes * (cfg->send_depth + cfg->recv_depth);
	struct rwf_device_attr attr;
	int rc = rwf_open(cfg->provider, name, cfg->options ? cfg->options : "", &n->dev);

	if (!rc && !(rc = rwf_query(n->dev, &attr)))
		n->flags = attr.flags;
	if (!rc)
		rc = rwf_alloc_pd(n->dev, &n->pd);
	if (!rc)
		rc = rwf_create_cq(n->dev, (uint32_t)cqe, &n->cq);
	return rc;
}

static void close_one(struct nic *n)
{
	if (n->cq)
		rwf_destroy_cq(n->cq);
	if (n->pd)
		rwf_dealloc_pd(n->pd);
	if (n->dev)
		rwf_close(n->dev);
	memset(n, 0, sizeof *n);
}

void nics_close(struct nic *nics, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		close_one(&nics[i]);
}

/* Opens those that are named. */
static int open_named(const struct rw_config *cfg, struct nic *nics, uint32_t *count)
{
	if (cfg->ndevices > RW_MAX_NICS)
		return rwf_fail(EINVAL, "open: %u devices: a session uses at most %d", cfg->ndevices, RW_MAX_NICS);
	for (*count = 0; *count < cfg->ndevices;) {
		struct nic *n = &nics[(*count)++];
		int rc = open_one(cfg, cfg->devices[*count - 1], n);

		if (rc)
			return rc;
	}
	return 0;
}

/* Opens all that have a link. */
static int open_linked(const struct rw_config *cfg, struct nic *nics, uint32_t *count)
{
	char names[NAMES_CAP];
	int rc = rwf_list(cfg->provider, names, sizeof names);

	if (rc < 0)
		return rc;
	if (rc == 0)
		names[0] = 0; /* opening no device says what is missing */
	for (char *name = names, *end; *count < RW_MAX_NICS && (name == names || *name); name = end) {
		struct nic *n = &nics[*count];

		end = name + strcspn(name, "\n");
		if (*end)
			*end++ = 0;
		rc = open_one(cfg, name, n);
		if (rc == -ENETDOWN) {
			close_one(n);
			continue;
		}
		++*count;
		if (rc)
			return rc;
	}
	return *count ? 0 : rc;
}

int nics_open(const struct rw_config *cfg, struct nic nics[RW_MAX_NICS], uint32_t *count)
{
	static const char *const first[] = {""};
	struct rw_config one = *cfg;

	*count = 0;
	if (cfg->ndevices)
		return open_named(cfg, nics, count);
	if (strcmp(cfg->provider, "ibv") == 0)
		return open_linked(cfg, nics, count);
	one.devices = first;
	one.ndevices = 1;
	return open_named(&one, nics, count);
}

int session_queue_pair(struct rw_session *s, uint32_t lane, uint32_t nic)
{
	struct lane_end *l = &s->lanes[lane];
	struct rwf_qp_init init = {.send_cq = s->nics[nic].cq,
				   .recv_cq = s->nics[nic].cq,
				   .max_send_wr = s->cfg.send_depth,
				   .max_recv_wr = s->cfg.recv_depth};

	l->nic = nic;
	l->worker.nic = nic;
	l->worker.send_depth = s->cfg.send_depth;
	return rwf_create_qp(s->nics[nic].pd, &init, &l->qp);
}
