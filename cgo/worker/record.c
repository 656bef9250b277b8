/* The tensor control record on the wire; the layout is chunk.TensorRecord's. */
#include "internal.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum { SCALE = 8, EXTRA = 28, DST = 32, RKEY = 40, FLAGS = 44, STEP = 48, SUM = 52 };

static uint32_t crc32c(const unsigned char *p, size_t n)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
	}
	return ~crc;
}

static void put32(unsigned char *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof v);
}

static uint32_t get32(const unsigned char *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

static float get_float(const unsigned char *p)
{
	uint32_t bits = get32(p);
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

void record_encode(unsigned char out[RW_RECORD_BYTES], const float hyper[8], uint64_t dst, uint32_t rkey, uint32_t flags)
{
	memset(out, 0, RW_RECORD_BYTES);
	for (int i = 0; i < 8; i++) {
		uint32_t bits;

		memcpy(&bits, &hyper[i], sizeof bits);
		put32(out + 4 * i, bits);
	}
	put32(out + DST, (uint32_t)dst);
	put32(out + DST + 4, (uint32_t)(dst >> 32));
	put32(out + RKEY, rkey);
	put32(out + FLAGS, flags);
	put32(out + SUM, crc32c(out, SUM));
}

void record_announce(unsigned char out[RW_RECORD_BYTES], uint32_t step)
{
	memset(out, 0, RW_RECORD_BYTES);
	put32(out + STEP, step);
	put32(out + SUM, crc32c(out, SUM));
}

uint32_t record_step(const unsigned char record[RW_RECORD_BYTES])
{
	return get32(record + STEP);
}

int rw_worker_answer(rw_worker *w, struct rw_answer *out)
{
	unsigned char p[RW_RECORD_BYTES];

	enter(w);
	memcpy(p, w->commit_record, sizeof p);
	pthread_mutex_unlock(&w->lock);
	if (get32(p + SUM) != crc32c(p, SUM))
		return rwf_fail(EPROTO, "commit: the answer is missing, or its checksum is wrong");
	*out = (struct rw_answer){.norm = get_float(p + EXTRA),
				  .scale = get_float(p + SCALE),
				  .step = get32(p + STEP),
				  .pull = (get32(p + FLAGS) & RECORD_PULL) != 0};
	return 0;
}
