/* Operations on rows need each id once, ascending: rows are sorted by id, and rows of the same id are summed. */
#include "internal.h"

#include <string.h>

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

struct item {
	int64_t id;
	uint64_t at;
};

/* Sorts items by id, digit by digit, because equal ones must keep their order. Returns the sorted array: items or spare. */
static struct item *sort_by_id(struct item *items, struct item *spare, uint64_t n, int64_t most)
{
	for (int shift = 0; shift < 63 && most >> shift > 0; shift += DIGIT_BITS) {
		uint64_t starts[DIGITS] = {0}, at = 0;
		struct item *sorted = spare;

		for (uint64_t i = 0; i < n; i++)
			starts[items[i].id >> shift & (DIGITS - 1)]++;
		for (int d = 0; d < DIGITS; d++) {
			uint64_t count = starts[d];

			starts[d] = at;
			at += count;
		}
		for (uint64_t i = 0; i < n; i++)
			sorted[starts[items[i].id >> shift & (DIGITS - 1)]++] = items[i];
		spare = items;
		items = sorted;
	}
	return items;
}

/* Reports whether ids ascend strictly, and sets most to the largest. Returns a failure if one is negative. */
static int check_ids(const int64_t *ids, uint64_t n, int64_t *most)
{
	int ascending = 1;

	*most = 0;
	for (uint64_t i = 0; i < n; i++) {
		if (ids[i] < 0)
			return rwf_fail(EINVAL, "sum rows: id %llu is %lld: rows are numbered from 0", (unsigned long long)i,
					(long long)ids[i]);
		ascending &= i == 0 || ids[i] > ids[i - 1];
		*most = ids[i] > *most ? ids[i] : *most;
	}
	return ascending;
}

int64_t rw_sum_rows(int64_t *ids, uint64_t n, void *rows, uint32_t width, int type)
{
	struct item *items, *sorted;
	uint64_t count = 0, each;
	int64_t most;
	char *sums;
	int rc;

	if (type < RW_F32 || type > RW_F16 || width == 0)
		return rwf_fail(EINVAL, "sum rows: rows of %u elements of type %d: use 1 or more, of enum rw_type", width, type);
	if (n > 0 && (!ids || !rows))
		return rwf_fail(EINVAL, "sum rows: %s at NULL of %llu rows: give their memory", ids ? "elements" : "ids",
				(unsigned long long)n);
	rc = check_ids(ids, n, &most);
	if (rc)
		return rc < 0 ? rc : (int64_t)n;
	each = (uint64_t)width * type_size((uint8_t)type);
	items = malloc(2 * n * sizeof *items);
	sums = malloc(n * each);
	if (!items || !sums) {
		free(items);
		free(sums);
		return rwf_fail(ENOMEM, "sum rows: no memory for %llu rows of %llu bytes", (unsigned long long)n,
				(unsigned long long)each);
	}
	for (uint64_t i = 0; i < n; i++)
		items[i] = (struct item){ids[i], i};
	sorted = sort_by_id(items, items + n, n, most);
	for (uint64_t i = 0; i < n; i++) {
		const char *row = (const char *)rows + sorted[i].at * each;

		if (count > 0 && ids[count - 1] == sorted[i].id) {
			const uint64_t dst = (uintptr_t)(sums + (count - 1) * each), both[] = {dst, (uintptr_t)row};

			rwk_sum(rwk_best(), &dst, 1, type, both, NULL, 2, type, width, 0, 0);
			continue;
		}
		memcpy(sums + count * each, row, each);
		ids[count++] = sorted[i].id;
	}
	memcpy(rows, sums, count * each);
	free(items);
	free(sums);
	return (int64_t)count;
}
