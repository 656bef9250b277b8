/*
 * Huge pages under the caller's own gradients and results. An allocator usually gives memory in small pages, and a copy from there
 * takes up to twice as long. So memory that a tensor uses for the second time, and will use for longer, is moved into huge pages,
 * once (madvise(2), MADV_COLLAPSE, Linux 6.1). Memory that cannot be moved stays in small pages. Nothing is moved where memory is
 * short, because the system would first move other pages out of the way, for seconds.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_PAGE (UINT64_C(2) << 20)
#define SPARE 4 /* multiple of the moved memory that must be free, because other workers move theirs at the same time */

static uint64_t free_memory(void)
{
	struct sysinfo info;

	return sysinfo(&info) ? 0 : (uint64_t)info.freeram * info.mem_unit;
}

void rw_worker_huge_pages(uint64_t first, uint64_t last)
{
	if (first < last && (last - first) * SPARE <= free_memory())
		madvise((void *)(uintptr_t)first, last - first, MADV_COLLAPSE);
}

static uint64_t start_of(const struct rw_worker *w, uint32_t tensor, int end)
{
	return (uintptr_t)w->tensors[tensor].used[end].memory;
}

static uint64_t bytes_of(const struct rw_worker *w, uint32_t tensor)
{
	return w->tensors[tensor].elems * type_size(w->tensors[tensor].memory_type);
}

/*
 * Moves the huge pages that contain part of a tensor's memory, and that lie in its memory and its neighbours', because tensors may
 * be parts of one block.
 */
static void collapse(const struct rw_worker *w, uint32_t tensor, int end)
{
	uint64_t from = start_of(w, tensor, end), to = from + bytes_of(w, tensor);
	uint64_t first = from & ~(HUGE_PAGE - 1), last = (to + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);

	for (uint32_t i = tensor; i-- > 0 && from > first && start_of(w, i, end) + bytes_of(w, i) == from;)
		from = start_of(w, i, end);
	for (uint32_t i = tensor + 1; i < w->ntensors && to < last && start_of(w, i, end) == to; i++)
		to += bytes_of(w, i);
	if (from > first)
		first = (from + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	if (to < last)
		last = to & ~(HUGE_PAGE - 1);
	rw_worker_huge_pages(first, last);
}

void pages_used(struct rw_worker *w, uint32_t tensor, int end, const void *memory)
{
	struct used *u = &w->tensors[tensor].used[end];

	if (u->memory != memory) {
		u->memory = memory;
		u->collapsed = 0;
	} else if (!u->collapsed) {
		u->collapsed = 1;
		collapse(w, tensor, end);
	}
}
