/* The devices a session uses, and its lanes' queue pairs on them. */
#define _GNU_SOURCE
#include "library.h"

#include <errno.h>
#include <string.h>

enum { NAMES_CAP = 16 << 10 };

/* Opens a device behind the others. */
static int open_one(const struct rw_config *cfg, const char *name, struct nic *nics, uint32_t *count)
{
	uint64_t cqe = (uint64_t)cfg->nlanes * (cfg->send_depth + cfg->recv_depth);
	struct nic *n = &nics[*count];
	struct rwf_device_attr attr;
	int rc;

	if (*count == RW_MAX_NICS)
		return rwf_fail(EINVAL, "open: more than %d devices: name fewer", RW_MAX_NICS);
	rc = rwf_open(cfg->provider, name, cfg->options ? cfg->options : "", &n->dev);
	if (rc)
		return rc;
	++*count;
	rc = rwf_query(n->dev, &attr);
	if (rc)
		return rc;
	n->flags = attr.flags;
	rc = rwf_alloc_pd(n->dev, &n->pd);
	return rc ? rc : rwf_create_cq(n->dev, (uint32_t)cqe, &n->cq);
}

void nics_close(struct nic *nics, uint32_t count)
{
	for (struct nic *n = nics; n < nics + count; n++) {
		if (n->cq)
			rwf_destroy_cq(n->cq);
		if (n->pd)
			rwf_dealloc_pd(n->pd);
		rwf_close(n->dev);
	}
}

/* Opens the named devices, all of ibv with a link, or the first of another provider. */
static int open_all(const struct rw_config *cfg, struct nic *nics, uint32_t *count)
{
	char names[NAMES_CAP];
	int rc = 0;

	for (uint32_t i = 0; !rc && i < cfg->ndevices; i++)
		rc = open_one(cfg, cfg->devices[i], nics, count);
	if (cfg->ndevices)
		return rc;
	if (!rwf_has_nics(cfg->provider))
		return open_one(cfg, "", nics, count);
	rc = rwf_list(cfg->provider, names, sizeof names);
	if (rc < 0)
		return rc;
	/* Without a device the one name is empty, and the error of opening it has the remedy. */
	for (char *rest = names, *name; *count < RW_MAX_NICS && (name = strsep(&rest, "\n"));) {
		rc = open_one(cfg, name, nics, count);
		if (rc && rc != -ENETDOWN)
			return rc;
	}
	return *count ? 0 : rc;
}

int nics_open(const struct rw_config *cfg, struct nic nics[RW_MAX_NICS], uint32_t *count, struct rw_worker_lane *lanes)
{
	int rc = open_all(cfg, nics, count);

	for (uint32_t lane = 0; !rc && lane < cfg->nlanes; lane++) {
		uint32_t nic = cfg->lane_nics[lane] % *count;
		struct rwf_qp_init init = {.cq = nics[nic].cq, .max_send_wr = cfg->send_depth, .max_recv_wr = cfg->recv_depth};

		lanes[lane].nic = nic;
		lanes[lane].recv_depth = cfg->recv_depth;
		rc = rwf_create_qp(nics[nic].pd, &init, &lanes[lane].qp);
	}
	return rc;
}
