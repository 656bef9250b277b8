/*
 * Provider shm: this process's memory regions, and notifying the peers of them.
 *
 * Every change marks its slot dirty in each queue pair of the protection domain and raises adverts_issued in the shared memory. The
 * message follows at once or, if the socket is full, from the owner's next call. A sender that sees the count change reads its
 * socket before it looks a key up. So a key becomes valid, or stale, as soon as the call that makes it so returns.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void mark(struct shm_qp *q, uint32_t slot)
{
	q->dirty[slot / 64] |= UINT64_C(1) << slot % 64;
}

/* Sends one slot's message. Returns 0 when it is sent or not needed. */
static int advertise_slot(struct shm_qp *q, uint32_t slot)
{
	const struct rwb_mr *m = &shm_dev(q->base.head.pd->dev)->door.device.mrs[slot];
	uint64_t bit = UINT64_C(1) << slot % 64;
	struct shm_ctl c = {.type = SHM_MR_DEL, .slot = slot};
	int rc;

	if (m->key && m->pd == q->base.head.pd && rwb_for_peer(&q->base.head, m->access) &&
	    ((m->access & RWF_ACCESS_REMOTE_WRITE) || q->peer_by_ref)) {
		uint32_t rights = (uint32_t)m->access & (RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE);

		c = (struct shm_ctl){SHM_MR_ADD, m->key, slot, rights, m->addr, m->length, m->offset};
		rc = shm_send(q->sock, &c, sizeof c, m->fd);
		if (rc == 0)
			q->known[slot / 64] |= bit;
		return rc;
	}
	if (!(q->known[slot / 64] & bit))
		return 0;
	rc = shm_send(q->sock, &c, sizeof c, -1);
	if (rc == 0)
		q->known[slot / 64] &= ~bit;
	return rc;
}

/* Sends the dirty slots. Under the device's lock. */
static void advertise_locked(struct shm_qp *q)
{
	for (uint32_t w = 0; w < SHM_MR_SLOTS / 64; w++)
		while (q->dirty[w]) {
			if (advertise_slot(q, w * 64 + (uint32_t)__builtin_ctzll(q->dirty[w]))) {
				atomic_store_explicit(&q->backlog, true, memory_order_relaxed);
				return;
			}
			q->dirty[w] &= q->dirty[w] - 1;
		}
	atomic_store_explicit(&q->backlog, false, memory_order_relaxed);
	atomic_store_explicit(&q->mine->adverts_sent, q->issued, memory_order_release);
}

void shm_advertise(struct shm_qp *q)
{
	struct shm_device *d = shm_dev(q->base.head.pd->dev);

	pthread_mutex_lock(&d->door.device.lock);
	advertise_locked(q);
	pthread_mutex_unlock(&d->door.device.lock);
}

/* Advertises every region to the peer of a new connection. Under the device's lock. */
void shm_advertise_all(struct shm_qp *q)
{
	struct shm_device *d = shm_dev(q->base.head.pd->dev);

	for (uint32_t slot = 0; slot < SHM_MR_SLOTS; slot++)
		if (d->door.device.mrs[slot].key && d->door.device.mrs[slot].pd == q->base.head.pd)
			mark(q, slot);
	atomic_store_explicit(&q->mine->adverts_issued, ++q->issued, memory_order_release);
	advertise_locked(q);
}

/* Under the device's lock. */
static void changed(struct shm_device *d, rwf_pd *pd, uint32_t slot)
{
	struct rwb_qp *base;

	LIST_FOREACH(base, &d->door.device.qps, of_device) {
		struct shm_qp *q = (struct shm_qp *)base;

		if (q->base.head.pd != pd || shm_state(q) != RWF_QPS_RTS)
			continue;
		mark(q, slot);
		atomic_store_explicit(&q->mine->adverts_issued, ++q->issued, memory_order_release);
		advertise_locked(q);
		if (q->backlog)
			rwf_wake_cq(&q->cq->base.head); /* the owner sends the rest */
	}
}

/* Checks that the memfd cannot shrink while others map it, and adds the seal if it is missing. */
static int check_memfd(int fd, uint64_t offset, size_t length)
{
	struct stat st;
	int seals;

	if (fd < 0)
		return rwf_fail(EINVAL, "register memory: provider shm needs the memfd that backs it: allocate with memfd_create");
	if (fstat(fd, &st))
		return rwf_fail(errno, "register memory: fd %d: %s", fd, strerror(errno));
	if (!S_ISREG(st.st_mode) || offset > (uint64_t)st.st_size || length > (uint64_t)st.st_size - offset)
		return rwf_fail(EINVAL, "register memory: fd %d has %lld bytes, the region ends at %llu", fd, (long long)st.st_size,
				(unsigned long long)(offset + length));
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (!(seals & F_SEAL_SHRINK) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)))
		return rwf_fail(EINVAL,
				"register memory: fd %d cannot be sealed against shrinking: create it with "
				"memfd_create(MFD_ALLOW_SEALING)",
				fd);
	return 0;
}

int shm_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t offset, struct rwf_mr *out)
{
	struct shm_device *d = shm_dev(pd->dev);
	struct rwb_mr want = {.access = access, .addr = (uintptr_t)addr, .length = length, .offset = offset};
	int rc;

	if (length > SHM_MAX_MR_SIZE)
		return rwf_fail(EINVAL, "register memory: %zu bytes, the device allows %llu", length,
				(unsigned long long)SHM_MAX_MR_SIZE);
	rc = check_memfd(fd, offset, length);
	if (rc)
		return rc;
	want.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (want.fd < 0)
		return rwf_fail(errno, "register memory: dup: %s", strerror(errno));
	pthread_mutex_lock(&d->door.device.lock);
	rc = rwb_mr_add(pd, &want, out);
	if (rc >= 0)
		changed(d, pd, (uint32_t)rc);
	pthread_mutex_unlock(&d->door.device.lock);
	if (rc < 0)
		shm_close_own(want.fd);
	return rc < 0 ? rc : 0;
}

int shm_dereg_mr(rwf_pd *pd, uint32_t lkey)
{
	struct shm_device *d = shm_dev(pd->dev);
	int slot;

	pthread_mutex_lock(&d->door.device.lock);
	slot = rwb_mr_remove(pd, lkey);
	if (slot >= 0) {
		changed(d, pd, (uint32_t)slot);
		shm_close_own(d->door.device.mrs[slot].fd);
	}
	pthread_mutex_unlock(&d->door.device.lock);
	return slot < 0 ? slot : 0;
}
