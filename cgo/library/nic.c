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
static int open_named(const struct rw_config *cfg, struct nic *nics, uint32_t room, uint32_t *count)
{
	if (cfg->ndevices > room)
		return rwf_fail(EINVAL, "open: %u devices for one address: a session has room for %u of %d", cfg->ndevices, room,
				RW_MAX_NICS);
	while (*count < cfg->ndevices) {
		struct nic *n = &nics[(*count)++];
		int rc = open_one(cfg, cfg->devices[*count - 1], n);

		if (rc)
			return rc;
	}
	return 0;
}

/* Opens all that have a link. */
static int open_linked(const struct rw_config *cfg, struct nic *nics, uint32_t room, uint32_t *count)
{
	char names[NAMES_CAP];
	int rc = rwf_list(cfg->provider, names, sizeof names);

	if (rc < 0)
		return rc;
	if (rc == 0)
		names[0] = 0; /* opening no device says what is missing */
	for (char *name = names, *end; *count < room && (name == names || *name); name = end) {
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

/* Opens the devices that lead to one address. */
static int open_some(const struct rw_config *cfg, struct nic *nics, uint32_t room, uint32_t *count)
{
	static const char *const first[] = {""};
	struct rw_config one = *cfg;

	if (cfg->ndevices)
		return open_named(cfg, nics, room, count);
	if (strcmp(cfg->provider, "ibv") == 0)
		return open_linked(cfg, nics, room, count);
	one.devices = first;
	one.ndevices = 1;
	return open_named(&one, nics, room, count);
}

/* The devices for one line of the options. */
struct reach {
	const char *line;
	size_t length;
	uint32_t first, count;
};

/* Finds the devices for a line, of n that are open, or opens them behind the others. */
static int reach(const struct rw_config *cfg, struct reach *all, uint32_t *n, const char *line, size_t length, struct nic *nics,
		 uint32_t *count, struct reach **out)
{
	char options[256];
	struct rw_config one = *cfg;
	struct reach *r = all;
	int rc;

	while (r < all + *n && (r->length != length || memcmp(r->line, line, length) != 0))
		r++;
	*out = r;
	if (r < all + *n)
		return 0;
	if (*n == RW_MAX_NICS || length >= sizeof options)
		return rwf_fail(EINVAL, "open: options for more than %d addresses, or of more than %zu bytes", RW_MAX_NICS,
				sizeof options - 1);
	memcpy(options, line, length);
	options[length] = 0;
	one.options = options;
	*r = (struct reach){.line = line, .length = length, .first = *count};
	rc = open_some(&one, nics + *count, RW_MAX_NICS - *count, &r->count);
	*count += r->count;
	++*n;
	return rc;
}

int nics_open(const struct rw_config *cfg, struct nic nics[RW_MAX_NICS], uint32_t *count, struct lane_end *lanes)
{
	const char *line = cfg->options ? cfg->options : "", *end = line;
	struct reach all[RW_MAX_NICS];
	uint32_t aggregators = 1, n = 0, lane = 0;

	for (const char *at = line; *at; at++)
		aggregators += *at == '\n';
	*count = 0;
	if (cfg->nlanes % aggregators)
		return rwf_fail(EINVAL, "open: %u lanes, and options for %u aggregators: each has as many lanes", cfg->nlanes,
				aggregators);
	for (uint32_t i = 0; i < aggregators; i++, line = end + 1) {
		struct reach *r;
		int rc;

		end = line + strcspn(line, "\n");
		rc = reach(cfg, all, &n, line, (size_t)(end - line), nics, count, &r);
		if (rc)
			return rc;
		for (uint32_t k = 0; k < cfg->nlanes / aggregators; k++, lane++)
			lanes[lane].nic = r->first + cfg->lane_nics[lane] % r->count;
	}
	return 0;
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
