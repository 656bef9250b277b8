/*
 * Provider shm: this process's memory regions, and notifying the peers of them.
 *
 * Every change marks its slot dirty in each queue pair of the protection domain and raises adverts_issued in the shared
 * memory. The message follows at once or, when the socket is full, from the owner's next call. A sender that sees the count
 * change reads its socket before it looks a key up. So a key becomes good, or stale, as soon as the call that makes it so
 * returns.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint32_t slot_of(uint32_t key)
{
	return key & (SHM_MR_SLOTS - 1);
}

/* Reports whether key gives this queue pair, or its peer, these rights to [addr, addr+len). Any thread, no lock. */
bool shm_mr_allows(const struct shm_qp *q, uint32_t key, uint64_t addr, uint32_t len, int access)
{
	const struct shm_mr *m = &shm_dev(q->base.pd->dev)->mr[slot_of(key)];

	return key && atomic_load_explicit(&m->key, memory_order_acquire) == key && m->pd == q->base.pd &&
	       (m->access & access) == access && (!access || rwb_for_peer(&q->base, m->access)) && addr >= m->addr &&
	       len <= m->len && addr - m->addr <= m->len - len;
}

static void mark(struct shm_qp *q, uint32_t slot)
{
	q->dirty[slot / 64] |= UINT64_C(1) << slot % 64;
}

/* Sends one slot's message. Returns 0 when it is sent or not needed. */
static int advertise_slot(struct shm_qp *q, uint32_t slot)
{
	const struct shm_mr *m = &shm_dev(q->base.pd->dev)->mr[slot];
	uint64_t bit = UINT64_C(1) << slot % 64;
	struct shm_ctl c = {.type = SHM_MR_DEL, .slot = slot};
	int rc;

	if (m->key && m->pd == q->base.pd && rwb_for_peer(&q->base, m->access) &&
	    ((m->access & RWF_ACCESS_REMOTE_WRITE) || q->peer_by_ref)) {
		uint32_t rights = (uint32_t)m->access & (RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE);

		c = (struct shm_ctl){SHM_MR_ADD, m->key, slot, rights, m->addr, m->len, m->offset};
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

/* Sends what is dirty. Under the device's lock. */
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
	struct shm_device *d = shm_dev(q->base.pd->dev);

	pthread_mutex_lock(&d->lock);
	advertise_locked(q);
	pthread_mutex_unlock(&d->lock);
}

/* Makes the peer of a new connection learn of every region. Under the device's lock. */
void shm_advertise_all(struct shm_qp *q)
{
	struct shm_device *d = shm_dev(q->base.pd->dev);

	for (uint32_t slot = 0; slot < SHM_MR_SLOTS; slot++)
		if (d->mr[slot].key && d->mr[slot].pd == q->base.pd)
			mark(q, slot);
	atomic_store_explicit(&q->mine->adverts_issued, ++q->issued, memory_order_release);
	advertise_locked(q);
}

/* Under the device's lock. */
static void changed(struct shm_device *d, rwf_pd *pd, uint32_t slot)
{
	for (struct shm_qp *q = d->qps; q; q = q->next) {
		if (q->base.pd != pd || shm_state(q) != RWF_QPS_RTS)
			continue;
		mark(q, slot);
		atomic_store_explicit(&q->mine->adverts_issued, ++q->issued, memory_order_release);
		advertise_locked(q);
		if (q->backlog)
			shm_wake_cq(&q->send_cq->base); /* the owner sends the rest */
	}
}

/* Checks that the memfd cannot shrink under whoever maps it, and adds the seal where it is missing. */
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

/* Draws a key that cannot be guessed and differs from the slot's last. */
static int new_key(struct shm_mr *m, uint32_t slot, uint32_t *key)
{
	do {
		int rc = shm_random(key, sizeof *key);

		if (rc)
			return rc;
		*key = (*key & ~(uint32_t)(SHM_MR_SLOTS - 1)) | slot;
	} while (*key < SHM_MR_SLOTS || *key == m->last_key);
	return 0;
}

static int add(struct shm_device *d, rwf_pd *pd, const struct shm_mr *want, uint32_t *key)
{
	for (uint32_t i = 0; i < SHM_MR_SLOTS; i++) {
		/* Slots are taken in turn, so that a freed one stays free for long. */
		uint32_t slot = (d->next_mr + i) & (SHM_MR_SLOTS - 1);
		struct shm_mr *m = &d->mr[slot];
		int rc;

		if (m->key)
			continue;
		rc = new_key(m, slot, key);
		if (rc)
			return rc;
		d->next_mr = slot + 1;
		m->last_key = *key;
		m->access = want->access;
		m->fd = want->fd;
		m->addr = want->addr;
		m->len = want->len;
		m->offset = want->offset;
		m->pd = pd;
		atomic_store_explicit(&m->key, *key, memory_order_release);
		changed(d, pd, slot);
		return 0;
	}
	return rwf_fail(ENOMEM, "register memory: the device has %d regions, its most", SHM_MR_SLOTS);
}

int shm_reg_mr(rwf_pd *pd, void *addr, size_t length, int access, int fd, uint64_t offset, struct rwf_mr *out)
{
	struct shm_device *d = shm_dev(pd->dev);
	struct shm_mr want = {.access = access, .addr = (uintptr_t)addr, .len = length, .offset = offset};
	uint32_t key;
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
	pthread_mutex_lock(&d->lock);
	rc = add(d, pd, &want, &key);
	pthread_mutex_unlock(&d->lock);
	if (rc) {
		close(want.fd);
		return rc;
	}
	*out = (struct rwf_mr){.addr = want.addr, .length = length, .lkey = key, .rkey = key};
	return 0;
}

int shm_dereg_mr(rwf_pd *pd, uint32_t lkey)
{
	struct shm_device *d = shm_dev(pd->dev);
	struct shm_mr *m = &d->mr[slot_of(lkey)];
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	if (lkey && m->key == lkey && m->pd == pd) {
		atomic_store_explicit(&m->key, 0, memory_order_release);
		changed(d, pd, slot_of(lkey));
		close(m->fd);
	} else {
		rc = rwf_fail(EINVAL, "deregister memory: key 0x%x is not one of this protection domain", lkey);
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}
