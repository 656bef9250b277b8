/* Arena memory against an oracle: what is allocated is apart, aligned and keeps its content; what is freed is used again. */
#include "check.h"

#include <errno.h>
#include <stdint.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECES = 200, ROUNDS = 4000, MOST = 64 << 10 };

struct piece {
	unsigned char *at;
	size_t bytes;
	unsigned char content;
};

static struct piece pieces[PIECES];

static unsigned next(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return *seed >> 8;
}

static void verify(const struct piece *p)
{
	for (size_t i = 0; i < p->bytes; i += 1 + p->bytes / 7)
		CHECK(p->at[i] == p->content);
	CHECK(p->at[p->bytes - 1] == p->content);
}

static void allocate(struct piece *p, size_t bytes, unsigned char content)
{
	void *at;

	CHECK(rw_alloc(bytes, &at) == 0);
	CHECK((uintptr_t)at % 64 == 0);
	CHECK(rw_in_arena(at, bytes));
	*p = (struct piece){at, bytes, content};
	memset(at, content, bytes);
	for (int i = 0; i < PIECES; i++)
		if (&pieces[i] != p && pieces[i].at)
			CHECK(pieces[i].at + pieces[i].bytes <= p->at || p->at + p->bytes <= pieces[i].at);
}

static struct rw_arenas arenas(void)
{
	struct rw_arenas now = {.size = sizeof now};

	CHECK(rw_arenas(&now) == 0);
	return now;
}

static void blocks(void)
{
	unsigned seed = 1;
	uint64_t mapped;

	for (int round = 0; round < ROUNDS; round++) {
		struct piece *p = &pieces[next(&seed) % PIECES];

		if (p->at) {
			verify(p);
			CHECK(rw_free(p->at) == 0);
			*p = (struct piece){0};
		} else {
			allocate(p, 1 + next(&seed) % MOST, (unsigned char)round);
		}
	}
	mapped = arenas().mapped_bytes;
	for (int i = 0; i < PIECES; i++)
		CHECK(rw_free(pieces[i].at) == 0);
	memset(pieces, 0, sizeof pieces);
	CHECK(arenas().blocks == 0 && arenas().allocated_bytes == 0);
	/* What was freed is one piece again. */
	allocate(&pieces[0], mapped, 1);
	CHECK(arenas().mapped_bytes == mapped);
	CHECK(rw_free(pieces[0].at) == 0);
	pieces[0].at = NULL;
}

static void misuse(void)
{
	struct sysinfo has;
	void *at;
	int local;

	CHECK(rw_free(NULL) == 0);
	CHECK(rw_free(&local) < 0 && strstr(rw_error(), "rw_alloc did not give it"));
	CHECK(rw_alloc(100, &at) == 0);
	CHECK(rw_free((char *)at + 64) < 0);
	CHECK(rw_free(at) == 0);
	CHECK(rw_free(at) < 0 && strstr(rw_error(), "freed before"));
	CHECK(rw_alloc(SIZE_MAX - 7, &at) < 0);
	CHECK(rw_alloc(SIZE_MAX / 4, &at) < 0 && strstr(rw_error(), "shared memory"));
	CHECK(sysinfo(&has) == 0); /* twice what there is has an address, and its pages would end this program */
	CHECK(rw_alloc((size_t)2 * has.mem_unit * (has.totalram + has.totalswap), &at) == -ENOMEM &&
	      strstr(rw_error(), "not so much"));
	CHECK(!rw_in_arena(&local, sizeof local));
}

/* A child's writes are its own, and it gets no arena memory. */
static void forks(void)
{
	void *at, *other;
	int *shared, status;
	pid_t pid;

	CHECK(rw_alloc(3 << 20, &at) == 0);
	shared = at;
	*shared = 1;
	pid = fork();
	if (pid == 0) {
		CHECK(*shared == 1);
		*shared = 2;
		CHECK(rw_alloc(8, &other) == RW_EFORKED);
		CHECK(rw_free(at) == 0);
		CHECK(!rw_in_arena(at, 8));
		_exit(*shared == 2 ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(*shared == 1);
	CHECK(rw_free(at) == 0);
}

int main(void)
{
	blocks();
	misuse();
	forks();
	puts("ok");
	return 0;
}
