/* Provider shm: the peer's memory regions, mapped here as their messages arrive. Owner thread only. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Returns the peer's region that holds [addr, addr+len) if key names it with these rights, or NULL. */
struct shm_remote_mr *shm_remote_find(struct shm_qp *q, uint32_t key, uint64_t addr, uint32_t len, int access)
{
	struct shm_remote_mr *m = q->remote[key & (SHM_MR_SLOTS - 1)];

	if (!key || !m || m->key != key || (m->access & access) != access || addr < m->addr || len > m->len ||
	    addr - m->addr > m->len - len)
		return NULL;
	return m;
}

/* Returns the address here of the peer's [addr, addr+len) if it may be written, or NULL. */
char *shm_remote_target(struct shm_qp *q, uint32_t key, uint64_t addr, uint32_t len)
{
	struct shm_remote_mr *m = shm_remote_find(q, key, addr, len, RWF_ACCESS_REMOTE_WRITE);
	char *data = m ? m->data + (addr - m->addr) : NULL;

	if (m && __builtin_expect(m->sparse != NULL, 0) && !shm_sparse_fill(q, m, data, len))
		return NULL;
	return data;
}

static void drop_region(struct shm_qp *q, struct shm_remote_mr *m)
{
	shm_sparse_close(m);
	shm_guard_remove(m->guard);
	munmap(m->map, m->map_len);
	free(m);
	q->mappings--;
}

/*
 * Releases a region that the peer took back. A caller that polled a by-reference payload may still be reading it, so the range
 * stays readable, as zeroes that cost no memory, until the queue pair is destroyed.
 */
static int remove_region(struct shm_qp *q, uint32_t slot)
{
	struct shm_remote_mr *m = q->remote[slot];

	q->remote[slot] = NULL;
	if (!m)
		return 0;
	if (!q->by_ref) {
		q->mapped -= m->map_len;
		drop_region(q, m);
		return 0;
	}
	shm_sparse_close(m);
	LIST_INSERT_HEAD(&q->retired, m, retired);
	mmap(m->map, m->map_len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	return q->retired_len++ < SHM_MAX_RETIRED ? 0 : -ENOSPC;
}

enum { HUGE_PAGE = 2 << 20 };

/*
 * Finds a multiple of align where len bytes fit. Another thread may take it before it is used as a hint. The kernel then maps
 * elsewhere, in small pages.
 */
static void *aligned_room(size_t len, size_t align)
{
	void *room = mmap(NULL, len + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room == MAP_FAILED)
		return NULL;
	munmap(room, len + align);
	return (void *)(((uintptr_t)room + align - 1) & ~(uintptr_t)(align - 1));
}

/*
 * Guards a new mapping of a peer that is not trusted. A peer may have an eighth of the mappings that are left, so that the next one
 * finds some too.
 */
static int guard_region(struct shm_qp *q, struct shm_remote_mr *m, int fd, const struct stat *st, uint64_t start, bool huge)
{
	bool holes = (uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size;
	int rc;

	if (q->mappings >= shm_guard_free() / 8)
		return -ENOSPC;
	if (holes && huge)
		return -EPERM;
	m->guard = shm_guard_add(m->map, m->map_len);
	if (m->guard < 0)
		return m->guard;
	rc = holes ? shm_sparse_open(m, fd, start) : 0;
	if (rc)
		shm_guard_remove(m->guard);
	return rc;
}

/* Maps [offset, offset+len) of a memfd of any page size, after making sure that touching it cannot fault. */
static int map_region(struct shm_qp *q, const struct shm_ctl *c, int fd, struct shm_remote_mr *m)
{
	int seals = fcntl(fd, F_GET_SEALS), prot = PROT_READ;
	struct stat st;
	struct statfs fs;
	uint64_t page, start, end;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || fstatfs(fd, &fs) || fs.f_bsize <= 0)
		return -EPERM;
	if (c->offset > (uint64_t)st.st_size || c->len > (uint64_t)st.st_size - c->offset)
		return -EPERM;
	page = (uint64_t)fs.f_bsize;
	start = c->offset & ~(page - 1);
	end = (c->offset + c->len + page - 1) & ~(page - 1);
	if (c->access & RWF_ACCESS_REMOTE_WRITE)
		prot |= PROT_WRITE;
	if (page < HUGE_PAGE && end - start >= HUGE_PAGE) {
		/* Huge pages of the file are mapped as such only if file and address are aligned alike. */
		uint64_t whole = (end + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1);

		start &= ~(uint64_t)(HUGE_PAGE - 1);
		end = whole <= (uint64_t)st.st_size ? whole : end;
		page = HUGE_PAGE;
	}
	m->map_len = end - start;
	m->map = mmap(aligned_room(m->map_len, page), m->map_len, prot, MAP_SHARED, fd, (off_t)start);
	if (m->map == MAP_FAILED)
		return -errno;
	if (q->guarded) {
		int rc = guard_region(q, m, fd, &st, start, fs.f_bsize > HUGE_PAGE / 2);

		if (rc) {
			munmap(m->map, m->map_len);
			return rc;
		}
	}
	q->mappings++;
	m->data = (char *)m->map + (c->offset - start);
	return 0;
}

static int add_region(struct shm_qp *q, const struct shm_ctl *c, int fd)
{
	struct shm_remote_mr *m;
	int rc;

	if ((c->key & (SHM_MR_SLOTS - 1)) != c->slot || c->key < SHM_MR_SLOTS || c->len == 0 || c->len > SHM_MAX_MR_SIZE ||
	    c->addr > UINT64_MAX - c->len || c->access > (RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE) ||
	    q->mapped > SHM_MAX_MAPPED - c->len)
		return -EPROTO;
	rc = remove_region(q, c->slot);
	if (rc)
		return rc;
	m = malloc(sizeof *m);
	if (!m)
		return -ENOMEM;
	*m = (struct shm_remote_mr){.key = c->key, .access = (int)c->access, .addr = c->addr, .len = c->len, .guard = -1};
	rc = map_region(q, c, fd, m);
	if (rc) {
		free(m);
		return rc;
	}
	q->mapped += m->map_len;
	q->remote[c->slot] = m;
	return 0;
}

static int handle(struct shm_qp *q, const void *buf, size_t len, int fd)
{
	struct shm_ctl c;

	if (len == 1 && fd < 0)
		return 0;
	if (len != sizeof c)
		return -EPROTO;
	memcpy(&c, buf, sizeof c);
	if (c.slot >= SHM_MR_SLOTS)
		return -EPROTO;
	if (c.type == SHM_MR_ADD && fd >= 0)
		return add_region(q, &c, fd);
	if (c.type == SHM_MR_DEL && fd < 0)
		return remove_region(q, c.slot);
	return -EPROTO;
}

/* Reports whether another message may be read. Messages of peers that are not trusted take a small part of the time. */
static bool may_read(const struct shm_qp *q)
{
	return !q->guarded || q->allowance > 0 || q->cq->allowance > 0;
}

static void charge(struct shm_qp *q, int cost)
{
	if (q->allowance > 0)
		q->allowance -= cost;
	else
		q->cq->allowance -= cost;
}

/*
 * Reads the messages in the socket. Returns 0, 1 if more are left for later, or a negative errno if the peer has ended or sends
 * invalid messages. It is bounded, so that a peer that never stops sending cannot hold us here.
 */
int shm_drain(struct shm_qp *q)
{
	int most = q->guarded ? SHM_MESSAGES_AT_ONCE : 2 * SHM_MR_SLOTS;

	for (int i = 0; i < most; i++) {
		if (!may_read(q))
			return 1;
		struct shm_ctl c;
		int fd, n = shm_recv(q->sock, &c, sizeof c, &fd), rc;

		if (n == -EAGAIN)
			return 0;
		/*
		 * A peer that ended before reading all resets the socket. That is reported once, and its messages can still be
		 * read.
		 */
		if (n == -ECONNRESET)
			continue;
		if (n <= 0)
			return n ? n : -EPIPE;
		charge(q, n == 1 ? 1 : SHM_REGION_COST);
		rc = handle(q, &c, (size_t)n, fd);
		shm_close_received(fd);
		if (rc)
			return rc;
	}
	return 1;
}

/*
 * Brings the view of the peer's regions up to its issued changes. Returns 0, -EAGAIN while its messages are still to come, or
 * another negative errno if the peer has ended. It costs one load if nothing changed.
 */
int shm_sync_regions(struct shm_qp *q)
{
	uint64_t issued = atomic_load_explicit(&q->peer->adverts_issued, memory_order_acquire), sent;
	int rc;

	if (__builtin_expect(issued == q->adverts_seen, 1))
		return 0;
	sent = atomic_load_explicit(&q->peer->adverts_sent, memory_order_acquire);
	rc = shm_drain(q);
	if (rc < 0)
		return rc;
	/* If 0, its first announcement is still to come. */
	if (rc || sent < issued || issued == 0)
		return -EAGAIN;
	q->adverts_seen = issued;
	return 0;
}

/* Reports whether the peer took pages away from under a mapping. */
bool shm_lost_pages(struct shm_qp *q)
{
	if (shm_guard_torn(q->shared_guard))
		return true;
	for (int slot = 0; slot < SHM_MR_SLOTS; slot++)
		if (q->remote[slot] && shm_guard_torn(q->remote[slot]->guard))
			return true;
	return false;
}

void shm_unmap_remote(struct shm_qp *q)
{
	struct shm_remote_mr *m;

	for (int slot = 0; slot < SHM_MR_SLOTS; slot++)
		if (q->remote[slot])
			drop_region(q, q->remote[slot]);
	while ((m = LIST_FIRST(&q->retired))) {
		LIST_REMOVE(m, retired);
		drop_region(q, m);
	}
}
