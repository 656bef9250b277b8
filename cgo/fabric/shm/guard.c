/*
 * Provider shm: mappings that a peer may tear. It can take pages out of its file at any time; of huge pages none may be left
 * when they are touched again, and the process would die of SIGBUS. The handler puts zeroes there instead, and the owner fails
 * the queue pair. Faults anywhere else go to the handler that was there before, which in a Go process is the runtime's.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct mapping {
	_Atomic uintptr_t start; /* 0: free. Stored last */
	size_t len;
	_Atomic bool torn;
	/* What it maps, under the lock: a file that several queue pairs map is counted once. */
	dev_t dev;
	ino_t ino; /* 0: it maps the file no more */
	uint64_t offset;
};

static struct mapping mappings[SHM_MAX_MAPPINGS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int next, top, used; /* the least that may be free, the end of those in use, how many are */
static uint64_t bytes;
static struct sigaction before;
static int started;
_Atomic uint32_t shm_tears;

static bool mend(uintptr_t at)
{
	for (int i = 0; i < SHM_MAX_MAPPINGS; i++) {
		struct mapping *m = &mappings[i];
		uintptr_t start = atomic_load_explicit(&m->start, memory_order_acquire);

		if (!start || at - start >= m->len)
			continue;
		if (mmap((void *)start, m->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
			 0) == MAP_FAILED)
			return false;
		atomic_store(&m->torn, true);
		atomic_fetch_add(&shm_tears, 1);
		return true;
	}
	return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	int saved = errno;

	if (info->si_code > 0 && mend((uintptr_t)info->si_addr)) {
		errno = saved;
		return;
	}
	errno = saved;
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(sig, info, context);
	else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(sig);
	else
		sigaction(SIGBUS, &before, NULL); /* the fault comes again, and is what it was */
}

/* Installs the handler, once. Returns 0 or a negative errno. */
int shm_guard_start(void)
{
	struct sigaction mine = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	int rc = 0;

	sigfillset(&mine.sa_mask);
	pthread_mutex_lock(&lock);
	if (!started) {
		rc = sigaction(SIGBUS, NULL, &before) || sigaction(SIGBUS, &mine, NULL) ? -errno : 0;
		started = !rc;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static bool same_range(const struct mapping *a, const struct mapping *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->offset == b->offset && a->len == b->len;
}

/* Counts the other mappings of the same range. Under the lock. */
static int twins(const struct mapping *m)
{
	int n = 0;

	for (int i = 0; i < top; i++)
		n += &mappings[i] != m && mappings[i].start && same_range(&mappings[i], m);
	return n;
}

/* Guards a mapping. Returns its number, or -ENOSPC where the process maps all it may. */
int shm_guard_add(void *map, size_t len, const struct stat *st, uint64_t offset, uint64_t max_bytes)
{
	struct mapping *m;
	int rc = -ENOSPC;

	pthread_mutex_lock(&lock);
	if (used < SHM_MAX_MAPPINGS) {
		while (atomic_load_explicit(&mappings[next].start, memory_order_relaxed))
			next++;
		m = &mappings[next];
		m->len = len;
		m->dev = st->st_dev;
		m->ino = st->st_ino;
		m->offset = offset;
		atomic_store(&m->torn, false);
		uint64_t more = twins(m) ? 0 : len;

		if (more <= max_bytes && bytes <= max_bytes - more) {
			bytes += more;
			used++;
			rc = next++;
			top = next > top ? next : top;
			atomic_store_explicit(&m->start, (uintptr_t)map, memory_order_release);
		}
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* Takes note that a range maps the file no more, but is still mapped. */
void shm_guard_retire(int guard)
{
	struct mapping *m;

	if (guard < 0)
		return;
	m = &mappings[guard];
	pthread_mutex_lock(&lock);
	if (m->ino && !twins(m))
		bytes -= m->len;
	m->ino = 0;
	pthread_mutex_unlock(&lock);
}

/* To be called before the range is unmapped. */
void shm_guard_remove(int guard)
{
	if (guard < 0)
		return;
	shm_guard_retire(guard);
	pthread_mutex_lock(&lock);
	atomic_store_explicit(&mappings[guard].start, 0, memory_order_release);
	next = guard < next ? guard : next;
	used--;
	pthread_mutex_unlock(&lock);
}

bool shm_guard_torn(int guard)
{
	return guard >= 0 && atomic_load(&mappings[guard].torn);
}

/* How many more mappings the process may have. */
uint32_t shm_guard_free(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = SHM_MAX_MAPPINGS - used;
	pthread_mutex_unlock(&lock);
	return (uint32_t)n;
}
