/*
 * Provider shm: a peer's file with holes. To touch one would fill it at our expense, so a payload that may lie in one is read
 * from the file, which fills nothing, and only so much is written into them. What was found to be there once is trusted to
 * stay, in blocks, so that a payload costs the look at one bit.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 2 << 20 };

struct shm_sparse {
	int fd;
	uint64_t start;  /* in the file, of the mapping */
	uint8_t there[]; /* a bit for each block of the mapping */
};

/* Takes note that a region's file has holes. Returns 0 or a negative errno. */
int shm_sparse_open(struct shm_remote_mr *m, int fd, uint64_t start)
{
	struct shm_sparse *s = calloc(1, sizeof *s + m->map_len / BLOCK / 8 + 1);

	if (!s)
		return -ENOMEM;
	s->start = start;
	s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (s->fd < 0) {
		free(s);
		return -errno;
	}
	m->sparse = s;
	return 0;
}

void shm_sparse_close(struct shm_remote_mr *m)
{
	if (m->sparse) {
		close(m->sparse->fd);
		free(m->sparse);
	}
	m->sparse = NULL;
}

/* Reports whether the file has all pages of a part of the mapping, or has them in swap. */
static bool whole(const struct shm_remote_mr *m, size_t at, size_t end)
{
	off_t hole = lseek(m->sparse->fd, (off_t)(m->sparse->start + at), SEEK_HOLE);

	return hole >= 0 && (uint64_t)hole >= m->sparse->start + (end < m->map_len ? end : m->map_len);
}

static bool block_there(struct shm_remote_mr *m, size_t block)
{
	uint8_t *bits = &m->sparse->there[block / 8], bit = (uint8_t)(1 << block % 8);

	if (!(*bits & bit) && whole(m, block * BLOCK, (block + 1) * BLOCK))
		*bits |= bit;
	return *bits & bit;
}

/* Reports whether touching the range fills no hole. */
bool shm_sparse_there(struct shm_remote_mr *m, const char *data, uint32_t len)
{
	size_t at = (size_t)(data - (char *)m->map), last = (at + len - 1) / BLOCK;

	for (size_t b = at / BLOCK; b <= last; b++)
		if (!block_there(m, b))
			return whole(m, at, at + len);
	return true;
}

/* Copies the range out of the file. */
bool shm_sparse_copy(const struct shm_remote_mr *m, void *dst, const char *data, uint32_t len)
{
	uint64_t from = m->sparse->start + (uint64_t)(data - (char *)m->map);

	for (uint32_t done = 0; done < len;) {
		ssize_t n = pread(m->sparse->fd, (char *)dst + done, len - done, (off_t)(from + done));

		if (n <= 0 && !(n < 0 && errno == EINTR))
			return false;
		done += n > 0 ? (uint32_t)n : 0;
	}
	return true;
}

/* Reports whether the range may be written to, holes or not, and charges the queue pair for them. */
bool shm_sparse_fill(struct shm_qp *q, struct shm_remote_mr *m, const char *data, uint32_t len)
{
	if (shm_sparse_there(m, data, len))
		return true;
	q->filled += len;
	return q->filled <= SHM_MAX_FILLED;
}
