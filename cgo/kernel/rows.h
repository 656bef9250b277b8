/*
 * Rows of sparse tensors. A lane holds them in chunks of per_chunk rows, and numbers them from 0: lane rows. Array i of chunk k,
 * f32, lies at base + k*pitch + i*stride. The stride is the bytes of the chunk's rows, up to whole cache lines. Array 0 holds the
 * weights, and the states follow.
 */
#ifndef RW_KERNEL_ROWS_H
#define RW_KERNEL_ROWS_H

#include "table.h"

#include <stdint.h>

/*
 * A gradient message (package codec): its ids, its rows, and how many of them were taken. The payload may change while it is read:
 * an id is checked as it is read, and the caller has checked the payload's length against the copy of its header that is here.
 */
struct rwk_row_source {
	uint64_t ids, rows;
	uint32_t count, at;
	uint32_t next; /* the next row that it lists, or to; set by rwk_begin_rows */
	uint32_t from, to, form;
};
void rwk_begin_rows(struct rwk_row_source *s);

enum rwk_rows_what {
	/* of rwk_merge_rows */
	RWK_ROWS_UPDATE,     /* the rule */
	RWK_ROWS_SUM,        /* the scaled sum goes to the block, and nothing else changes */
	RWK_ROWS_ACCUMULATE, /* the sum goes to the accumulator, and touched gets the row */
	/* of rwk_apply_rows */
	RWK_ROWS_APPLY,   /* the rule, with the accumulator as gradient; then touched is empty */
	RWK_ROWS_DROP,    /* touched becomes empty */
	RWK_ROWS_MEASURE, /* sumsq grows by each row's sum of squares in the accumulator, by ascending row */
};

#define RWK_ROW_SOURCES 1024 /* of a merge, at most */

struct rwk_rows {
	uint64_t base, pitch;
	uint64_t touched; /* u64[(rows + 63) / 64]: a bit for each row that was accumulated */
	/* The result block behind its header: u32[cap] ids, then rows of out_type. 0 if nobody wants results. */
	uint64_t block;
	uint64_t heat;                   /* u64 for each chunk: how many of its rows were merged so far */
	uint32_t rows, per_chunk, width; /* of the lane; rows of a chunk but the last; elements of a row */
	uint32_t cap, count;             /* rows that the block may have, and has */
	uint8_t what, rule, src_type, out_type;
	uint8_t standard;    /* UPDATE and APPLY also run the rule, with gradients of 0, over rows that no message lists */
	uint8_t accumulator; /* number of its array */
	float scalar[RWK_SCALARS];
	double sumsq;
};
/*
 * Merges the rows [from, to), which every message covers and has been merged up to. Each row is summed over the sources that list
 * it, in their order, with the bits that rwk_update or rwk_sum would give of those. Sets reached to the end of what was merged: to,
 * or before that the end of the last row for which the block had room. If outs are given, at most RWK_ROW_SOURCES, the rows of the
 * results go into each of these blocks instead, and only the ids into the block.
 *
 * Returns 0, or 1 + the number of the first source that lists a row that does not ascend or that its message does not cover, or
 * more or fewer rows than it counts. All rows before reached are merged then, too. Returns -1 as rwk_update does.
 */
int rwk_merge_rows(int isa, struct rwk_rows *r, struct rwk_row_source *src, uint32_t nsrc, const uint64_t *outs, uint32_t nouts,
		   uint32_t from, uint32_t to, uint32_t *reached);
/* Runs what of the accumulator over the rows [from, to). Returns 0, or -1 as rwk_update does. */
int rwk_apply_rows(int isa, struct rwk_rows *r, uint32_t from, uint32_t to);
/*
 * Copies the weights of count rows to dst, as dst_type. Each id is read once. Returns 0, or 1 + the number of the first id that is
 * not that of a row.
 */
uint32_t rwk_gather_rows(int isa, const struct rwk_rows *r, uint64_t ids, uint32_t count, uint64_t dst, int dst_type);

#endif
