/*
 * Adoption: a block of ordinary memory becomes arena memory where it lies, by a memfd mapped over its pages. That is safe only
 * where the block has its pages for itself and glibc gives them back to the system when it is freed: where glibc mapped it. A
 * block of the heap would hand the pages on to whoever gets its memory next.
 */
#define _GNU_SOURCE
#include "library.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The low bits of glibc's size word of a block: it is mapped, and nothing else. */
enum { FLAGS = 7, IS_MMAPPED = 2 };

struct mapping {
	uint64_t first, end;
	char rights[5], name[64], flags[256];
};

/* Finds the mapping that addr lies in. */
static int find_mapping(uint64_t addr, struct mapping *m)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[512];
	int found = 0;

	if (!f)
		return rwf_fail(errno, "adopt: /proc/self/smaps: %s", strerror(errno));
	while (fgets(line, sizeof line, f)) {
		struct mapping now = {0};

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %63s", &now.first, &now.end, now.rights, now.name) >= 3) {
			*m = now;
			found = addr >= m->first && addr < m->end;
		} else if (found && strncmp(line, "VmFlags:", 8) == 0) { /* a mapping's last line */
			snprintf(m->flags, sizeof m->flags, "%.254s", line + 8);
			break;
		}
	}
	fclose(f);
	return found ? 0 : rwf_fail(EINVAL, "adopt: nothing is mapped at 0x%" PRIx64, addr);
}

/* Whether the memory is ordinary: private, without a name, and neither locked nor kept from children, as what a device knows is. */
static int is_ordinary(const struct mapping *m)
{
	static const char *const foreign[] = {" lo", " dc", " pf", " io", " ht", " sh"};

	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (strstr(m->flags, foreign[i]))
			return 0;
	return strcmp(m->rights, "rw-p") == 0 && (m->name[0] == 0 || strncmp(m->name, "[anon", 5) == 0);
}

/* Finds the pages of the block that glibc mapped for p. */
static int find_block(const void *p, char **block, size_t *bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t *header; /* how far into its mapping the block lies, and its size */
	struct mapping m;
	int rc;

	if (!p || (uintptr_t)p % (2 * sizeof *header))
		return rwf_fail(EINVAL, "adopt %p: that is not a block of malloc's", p);
	header = (const size_t *)p - 2;
	rc = find_mapping((uintptr_t)header, &m);
	if (rc)
		return rc;
	if (!is_ordinary(&m) || (header[1] & FLAGS) != IS_MMAPPED)
		return rwf_fail(ENOTSUP, "adopt %p: it is not a block that glibc mapped for itself: take a larger one, or copy", p);
	*block = (char *)(uintptr_t)header - header[0];
	*bytes = (header[1] & ~(size_t)FLAGS) + header[0];
	if (header[0] > *bytes || (uintptr_t)*block % page || *bytes % page || (uintptr_t)*block < m.first ||
	    *bytes > m.end - (uintptr_t)*block)
		return rwf_fail(ENOTSUP, "adopt %p: it is not one ordinary mapping, as glibc makes them: copy", p);
	return 0;
}

static int copy_to(int fd, const char *from, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = pwrite(fd, from + done, bytes - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		done += (size_t)n;
	}
	return 0;
}

static int replace(char *block, size_t bytes)
{
	int fd = memfd_create("rackweave-adopted", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc = 0;

	if (fd < 0 || copy_to(fd, block, bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) ||
	    mmap(block, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		rc = rwf_fail(errno, "adopt %zu bytes: %s", bytes, strerror(errno));
	else
		rc = arena_list(block, bytes, fd, 1);
	if (rc && fd >= 0)
		close(fd);
	return rc;
}

int rw_adopt(void *p)
{
	char *block;
	size_t bytes;
	int rc = arena_lock();

	if (rc)
		return rwf_fail(-rc, "adopt: this process is a forked child");
	if (!arena_find(p, 1)) {
		rc = find_block(p, &block, &bytes);
		if (!rc)
			rc = replace(block, bytes);
	}
	arena_unlock();
	return rc;
}

int rw_disown(void *p)
{
	struct memory *m;
	int rc = arena_lock();

	if (rc)
		return 0;
	m = arena_find(p, 1);
	if (!m || !m->adopted)
		rc = rwf_fail(EINVAL, "disown %p: it was not adopted", p);
	else if (mmap(m->addr, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, m->fd, 0) == MAP_FAILED)
		rc = rwf_fail(errno, "disown %p: %s", p, strerror(errno));
	else
		arena_unlist(m);
	arena_unlock();
	return rc;
}
