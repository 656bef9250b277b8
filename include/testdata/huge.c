/* Arena memory lies in huge pages, small blocks too; prints none where the machine gives shared memory no huge pages at all. */
#define _GNU_SOURCE
#include "check.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { BLOCKS = 40 };
#define HUGE_PAGE ((size_t)2 << 20)
#define BLOCK ((size_t)300 << 10)

/* How much of the mapping around an address is in huge pages. */
static size_t huge_around(const void *p)
{
	unsigned long long first, last, kb, in = 0;
	uintptr_t addr = (uintptr_t)p;
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	size_t bytes = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%llx-%llx ", &first, &last) == 2)
			in = first <= addr && addr < last;
		else if (in && sscanf(line, "ShmemPmdMapped: %llu kB", &kb) == 1)
			bytes = (size_t)kb << 10;
	}
	fclose(f);
	return bytes;
}

/* The same without the library. */
static int machine_gives(void)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);
	char *at, *aligned;
	size_t huge;

	CHECK(fd >= 0 && ftruncate(fd, 2 * HUGE_PAGE) == 0);
	at = mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	munmap(at, 2 * HUGE_PAGE);
	aligned = (char *)(((uintptr_t)at + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	CHECK(mmap(aligned, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == aligned);
	memset(aligned, 1, HUGE_PAGE);
	madvise(aligned, HUGE_PAGE, MADV_COLLAPSE);
	huge = huge_around(aligned);
	munmap(aligned, HUGE_PAGE);
	close(fd);
	return huge == HUGE_PAGE;
}

static void large(void)
{
	void *at;

	CHECK(rw_alloc(8 * HUGE_PAGE, &at) == 0);
	CHECK((uintptr_t)at % HUGE_PAGE == 0);
	CHECK(huge_around(at) >= 8 * HUGE_PAGE);
	CHECK(rw_free(at) == 0);
}

/* Each block is written before the next is made: what begins a huge page moves those before it, too, and nothing is lost. */
static void small(void)
{
	unsigned char *blocks[BLOCKS];
	void *at;

	CHECK(rw_alloc(9 * HUGE_PAGE, &at) == 0); /* the small ones lie behind it, in the same slab */
	for (int i = 0; i < BLOCKS; i++) {
		void *block;

		CHECK(rw_alloc(BLOCK, &block) == 0);
		blocks[i] = block;
		memset(block, i, BLOCK);
		CHECK(huge_around(at) >= (size_t)((unsigned char *)block + BLOCK - (unsigned char *)at));
	}
	for (int i = 0; i < BLOCKS; i++)
		for (size_t k = 0; k < BLOCK; k++)
			CHECK(blocks[i][k] == i);
}

int main(void)
{
	if (!machine_gives()) {
		puts("none");
		return 0;
	}
	large();
	small();
	puts("ok");
	return 0;
}
