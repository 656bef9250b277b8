/* Ordinary memory that becomes arena memory, and is ordinary again. */
#include "check.h"

#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 << 20 };

static uint64_t adopted(void)
{
	struct rw_arenas now = {.size = sizeof now};

	CHECK(rw_arenas(&now) == 0);
	return now.adopted_bytes;
}

static void round_trip(unsigned char *p)
{
	int status;
	pid_t pid;

	for (int i = 0; i < BYTES; i++)
		p[i] = (unsigned char)(i * 7);
	CHECK(rw_adopt(p) == 0);
	CHECK(rw_adopt(p) == 0); /* it is already */
	CHECK(rw_in_arena(p, BYTES) && adopted() >= BYTES);
	for (int i = 0; i < BYTES; i++)
		CHECK(p[i] == (unsigned char)(i * 7));
	pid = fork();
	if (pid == 0) {
		memset(p, 1, BYTES);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(p[1] == 7);
	CHECK(rw_disown(p) == 0);
	CHECK(!rw_in_arena(p, 1) && adopted() == 0);
	for (int i = 0; i < BYTES; i++)
		CHECK(p[i] == (unsigned char)(i * 7));
	CHECK(rw_disown(p) < 0);
}

static void refuse(void *p, const char *why)
{
	CHECK(rw_adopt(p) < 0);
	CHECK(strstr(rw_error(), why));
	CHECK(!rw_in_arena(p, 1));
}

int main(void)
{
	unsigned char *p, *q;
	void *aligned, *arena;
	static char fixed[BYTES];

	mallopt(M_MMAP_THRESHOLD, 128 << 10); /* or glibc takes larger blocks from the heap after a while */
	p = malloc(BYTES);
	round_trip(p);
	q = realloc(p, 2 * BYTES);
	CHECK(q && q[1] == 7);
	free(q);
	CHECK(posix_memalign(&aligned, 64, BYTES) == 0);
	round_trip(aligned);
	free(aligned);
	CHECK(posix_memalign(&aligned, 2 << 20, BYTES) == 0);
	round_trip(aligned);
	free(aligned);

	p = malloc(1 << 10);
	refuse(p, "not a block that glibc mapped");
	free(p);
	q = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	refuse(q + 4096, "not a block that glibc mapped");
	munmap(q, BYTES);
	refuse(fixed + 64, "not a block");
	refuse((void *)(uintptr_t)4096, "nothing is mapped");
	refuse(NULL, "not a block of malloc's");
	p = malloc(BYTES);
	CHECK(mlock(p, BYTES) == 0 || getuid() != 0);
	if (getuid() == 0)
		refuse(p, "not a block that glibc mapped");
	munlock(p, BYTES);
	CHECK(madvise((void *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095), BYTES - 4096, MADV_DONTFORK) == 0);
	refuse(p, "not one ordinary mapping");
	free(p);
	CHECK(rw_alloc(100, &arena) == 0);
	CHECK(rw_disown(arena) < 0 && strstr(rw_error(), "not adopted"));
	puts("ok");
	return 0;
}
