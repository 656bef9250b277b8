/*
 * Provider shm: a peer's file with holes. Touching a hole would fill it at our expense. So a payload that may lie in one is read
 * from the file, which fills nothing, and the bytes written into holes are bounded. A page found present once is trusted to stay.
 * Memory that is allocated in pieces has holes near its used parts, and looking for them costs a walk over the pages.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 4096 };

struct shm_sparse {
	int fd;
	uint64_t start;  /* offset in the file, of the mapping */
	uint8_t there[]; /* a bit for each page of the mapping */
};

/* Records that a region's file has holes. Returns 0 or a negative errno. */
int shm_sparse_open(struct shm_remote_mr *m, int fd, uint64_t start)
{
	struct shm_sparse *s = calloc(1, sizeof *s + m->map_len / PAGE / 8 + 1);

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
		shm_close_own(m->sparse->fd);
		free(m->sparse);
	}
	m->sparse = NULL;
}

static bool there(const struct shm_sparse *s, size_t page)
{
	return s->there[page / 8] & 1 << page % 8;
}

/* Reports whether touching the range fills no hole, because the file has all its pages, or has them in swap. */
bool shm_sparse_there(struct shm_remote_mr *m, const char *data, uint32_t len)
{
	struct shm_sparse *s = m->sparse;
	size_t at = (size_t)(data - (char *)m->map), end = at + len, page = at / PAGE;
	off_t hole;

	while (page * PAGE < end && there(s, page))
		page++;
	if (page * PAGE >= end)
		return true;
	hole = lseek(s->fd, (off_t)(s->start + page * PAGE), SEEK_HOLE);
	if (hole < 0)
		return false;
	for (; page * PAGE < m->map_len && s->start + page * PAGE < (uint64_t)hole; page++)
		s->there[page / 8] |= (uint8_t)(1 << page % 8);
	return page * PAGE >= end;
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
