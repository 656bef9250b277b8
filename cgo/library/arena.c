/*
 * Arenas. Memory comes in slabs, each a memfd of its own that never shrinks and is never unmapped; a slab is divided into
 * blocks, whose list lies outside, because the memory is shared with the aggregator. Neighbours that are free are one block.
 */
#define _GNU_SOURCE
#include "library.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { ALIGN = 64, SEALS = F_SEAL_SHRINK | F_SEAL_GROW };
#define HUGE_PAGE ((size_t)2 << 20)
/* Slabs grow with what there is, so that they stay few: each is a memory region of every device. */
#define LEAST_SLAB ((size_t)32 << 20)
#define MOST_SPARE ((size_t)1 << 30)

struct block {
	struct block *next; /* in the slab, by address */
	char *addr;
	size_t bytes;
	uint8_t used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static uint64_t generation, serials;
static int in_child;

/* The child's pages are its own from here on: it neither sees what the parent writes after it touched a page, nor disturbs it. */
static void after_fork_in_child(void)
{
	in_child = 1;
	for (struct memory *m = memories; m; m = m->next)
		mmap(m->addr, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, m->fd, 0);
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void handle_forks(void)
{
	pthread_atfork(before_fork, arena_unlock, after_fork_in_child);
}

int arena_lock(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, handle_forks);
	pthread_mutex_lock(&lock);
	if (!in_child)
		return 0;
	pthread_mutex_unlock(&lock);
	return RW_EFORKED;
}

void arena_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

uint64_t arena_generation(void)
{
	return __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
}

void arena_each(void (*visit)(const struct memory *m, void *arg), void *arg)
{
	if (arena_lock())
		return;
	for (const struct memory *m = memories; m; m = m->next)
		visit(m, arg);
	arena_unlock();
}

int arena_list(char *addr, size_t bytes, int fd, int is_adopted)
{
	struct memory *m = malloc(sizeof *m);

	if (!m)
		return rwf_fail(ENOMEM, "arena: no memory for its list");
	*m = (struct memory){
		.next = memories, .serial = ++serials, .addr = addr, .bytes = bytes, .fd = fd, .adopted = (uint8_t)is_adopted};
	memories = m;
	__atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
	return 0;
}

void arena_unlist(struct memory *m)
{
	struct memory **at = &memories;

	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	close(m->fd);
	free(m);
	__atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
}

struct memory *arena_find(const void *p, size_t bytes)
{
	uintptr_t addr = (uintptr_t)p;

	for (struct memory *m = memories; m; m = m->next) {
		uintptr_t first = (uintptr_t)m->addr;

		if (addr >= first && addr - first < m->bytes && bytes <= m->bytes - (addr - first))
			return m;
	}
	return NULL;
}

static struct rw_arenas count(void)
{
	struct rw_arenas all = {0};

	for (const struct memory *m = memories; m; m = m->next) {
		*(m->adopted ? &all.adopted_bytes : &all.mapped_bytes) += m->bytes;
		for (const struct block *b = m->blocks; b; b = b->next) {
			all.blocks += b->used;
			all.allocated_bytes += b->used ? b->bytes : 0;
		}
	}
	return all;
}

/* Maps the memfd where huge pages can be. */
static char *map_aligned(int fd, size_t bytes)
{
	char *room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at;
	size_t before;

	if (room == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)room & (HUGE_PAGE - 1);
	at = mmap(room + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (at == MAP_FAILED) {
		munmap(room, bytes + HUGE_PAGE);
		return NULL;
	}
	if (before)
		munmap(room, before);
	munmap(at + bytes, HUGE_PAGE - before);
	madvise(at, bytes, MADV_HUGEPAGE);
	return at;
}

/* A slab with room for bytes, as one free block. NULL with a text. */
static struct block *new_slab(size_t bytes)
{
	size_t mapped = count().mapped_bytes, spare = mapped / 4 < MOST_SPARE ? mapped / 4 : MOST_SPARE, size = bytes;
	struct sysinfo has;
	struct block *b;
	char *at = NULL;
	int fd;

	/* The kernel would make the pages of more than there is, and kill whom it likes for want of the rest. */
	if (sysinfo(&has) == 0 && bytes / has.mem_unit > has.totalram + has.totalswap) {
		rwf_fail(ENOMEM, "arena: %zu bytes of shared memory: the machine has not so much", bytes);
		return NULL;
	}
	b = calloc(1, sizeof *b);
	if (size < LEAST_SLAB)
		size = LEAST_SLAB;
	if (size < spare)
		size = spare;
	size = (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	fd = memfd_create("rackweave-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
		at = map_aligned(fd, size);
	if (!at || !b || arena_list(at, size, fd, 0)) {
		rwf_fail(ENOMEM, "arena: %zu bytes of shared memory: %s", size, strerror(errno));
		if (at)
			munmap(at, size);
		if (fd >= 0)
			close(fd);
		free(b);
		return NULL;
	}
	*b = (struct block){.addr = at, .bytes = size};
	memories->blocks = b;
	return b;
}

/* The smallest free block of at least so many bytes. */
static struct block *best_fit(size_t bytes)
{
	struct block *best = NULL;

	for (const struct memory *m = memories; m; m = m->next)
		for (struct block *b = m->blocks; b; b = b->next)
			if (!b->used && b->bytes >= bytes && (!best || b->bytes < best->bytes))
				best = b;
	return best;
}

/* Cuts what is more than bytes off a free block. */
static int split(struct block *b, size_t bytes)
{
	struct block *rest;

	if (b->bytes == bytes)
		return 0;
	rest = malloc(sizeof *rest);
	if (!rest)
		return rwf_fail(ENOMEM, "arena: no memory for its list");
	*rest = (struct block){.next = b->next, .addr = b->addr + bytes, .bytes = b->bytes - bytes};
	b->next = rest;
	b->bytes = bytes;
	return 0;
}

static uintptr_t whole_pages(const char *p)
{
	return ((uintptr_t)p + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

/*
 * Makes the pages now: later, without memory, whoever touches them would die of SIGBUS. The block that begins a huge page
 * makes all of it, for those behind it, too. Most systems give shared memory small pages, whatever is advised, and the ends of
 * tensors would stay in these.
 */
static int populate(char *addr, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *first = (char *)((uintptr_t)addr & ~(page - 1)), *end = (char *)whole_pages(addr + bytes);
	const struct memory *m = arena_find(addr, bytes);

	if (madvise(first, (size_t)(end - first), MADV_POPULATE_WRITE) &&
	    (errno != EINVAL || fallocate(m->fd, 0, first - m->addr, end - first)))
		return rwf_fail(ENOMEM, "arena: the machine has no %zu bytes of shared memory left: %s", bytes, strerror(errno));
	rw_worker_huge_pages(whole_pages(addr), whole_pages(addr + bytes));
	return 0;
}

static int allocate(size_t bytes, void **out)
{
	struct block *b = best_fit(bytes);
	int rc;

	if (!b && !(b = new_slab(bytes)))
		return -ENOMEM;
	rc = populate(b->addr, bytes);
	if (!rc)
		rc = split(b, bytes);
	if (rc)
		return rc;
	b->used = 1;
	*out = b->addr;
	return 0;
}

int rw_alloc(size_t bytes, void **out)
{
	int rc = arena_lock();

	if (rc)
		return rwf_fail(-rc, "allocate: this process is a forked child: use ordinary memory in it");
	if (bytes > SIZE_MAX / 2)
		rc = rwf_fail(ENOMEM, "allocate %zu bytes", bytes);
	else
		rc = allocate(bytes ? (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN, out);
	arena_unlock();
	return rc;
}

/* Makes b one with its next block, where both are free. */
static void merge(struct block *b)
{
	struct block *gone = b->next;

	if (b->used || !gone || gone->used)
		return;
	b->bytes += gone->bytes;
	b->next = gone->next;
	free(gone);
}

static int give_back(const void *p)
{
	for (const struct memory *m = memories; m; m = m->next)
		for (struct block *b = m->blocks, *before = NULL; b; before = b, b = b->next) {
			if (b->addr != p || !b->used)
				continue;
			b->used = 0;
			merge(b);
			if (before)
				merge(before);
			return 0;
		}
	return rwf_fail(EINVAL, "free %p: rw_alloc did not give it, or it was freed before", p);
}

int rw_free(void *p)
{
	int rc;

	if (!p || arena_lock())
		return 0;
	rc = give_back(p);
	arena_unlock();
	return rc;
}

int rw_in_arena(const void *p, size_t bytes)
{
	int there;

	if (arena_lock())
		return 0;
	there = arena_find(p, bytes) != NULL;
	arena_unlock();
	return there;
}

int rw_arenas(struct rw_arenas *out)
{
	struct rw_arenas now;
	int rc = arena_lock();

	if (rc)
		return rwf_fail(-rc, "arenas: this process is a forked child");
	now = count();
	arena_unlock();
	now.size = out->size;
	memcpy(out, &now, out->size < sizeof now ? out->size : sizeof now);
	return 0;
}
