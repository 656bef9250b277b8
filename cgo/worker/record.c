/* Control records: when a tensor sends them, with which hyper-parameters; and their checksum on the wire. */
#include "internal.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(struct record) == RW_RECORD_BYTES && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "a record lies in memory as it travels");

/* Returns the CRC-32C of what is before it in the record. */
static uint32_t checksum(const struct record *r)
{
	const unsigned char *p = (const unsigned char *)r;
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < offsetof(struct record, sum); i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
	}
	return ~crc;
}

void record_put(struct record *out, struct record r)
{
	r.sum = checksum(&r);
	*out = r;
}

int rw_worker_answer(rw_worker *w, struct rw_answer *out)
{
	struct record r;

	enter(w);
	r = w->commit_record;
	pthread_mutex_unlock(&w->lock);
	if (r.sum != checksum(&r))
		return rwf_fail(EPROTO, "commit: the answer is missing, or its checksum is wrong");
	*out = (struct rw_answer){.norm = r.hyper[RECORD_EXTRA],
				  .scale = r.hyper[RECORD_SCALE],
				  .step = r.step,
				  .pull = (r.flags & RECORD_PULL) != 0};
	return 0;
}

void mark_records(struct rw_worker *w, struct tensor *t)
{
	t->recorded = 1;
	for (uint32_t i = 0; i < t->nparts; i++)
		w->parts[t->first_part + i].record_dirty = 1;
}

void set_hyper(struct rw_worker *w, struct tensor *t, const float hyper[RW_HYPERS])
{
	if (memcmp(t->hyper, hyper, sizeof t->hyper) == 0)
		return;
	memcpy(t->hyper, hyper, sizeof t->hyper);
	mark_records(w, t);
}

int rw_worker_hyper(rw_worker *w, uint32_t tensor, const float hyper[RW_HYPERS])
{
	int rc = 0;

	enter(w);
	if (w->tensors[tensor].active)
		rc = rwf_fail(EBUSY, "set hyper-parameters: tensor %u is being exchanged", tensor);
	else
		set_hyper(w, &w->tensors[tensor], hyper);
	pthread_mutex_unlock(&w->lock);
	return rc;
}
