/*
 * Provider shm: mappings that a peer may tear. A peer can take pages out of its file at any time. Huge pages may then be exhausted
 * when they are touched again, and the process would die of SIGBUS. The handler maps zeroes there instead, and the owner fails the
 * queue pair. Other faults go to the previous handler, which in a Go process is the runtime's.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

struct mapping {
	_Atomic uintptr_t start; /* 0 if free; stored last */
	size_t len;
	_Atomic bool torn;
};

static struct mapping mappings[SHM_MAX_MAPPINGS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int next, used; /* the least free one, the number of used ones */
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
		sigaction(SIGBUS, &before, NULL); /* the fault recurs, and is handled as before */
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

/* Guards a mapping. Returns its number, or -ENOSPC if the process has too many, or too large ones. */
int shm_guard_add(void *map, size_t len)
{
	struct mapping *m;
	int rc = -ENOSPC;

	pthread_mutex_lock(&lock);
	if (used < SHM_MAX_MAPPINGS && len <= SHM_MAX_GUARDED - bytes) {
		while (atomic_load_explicit(&mappings[next].start, memory_order_relaxed))
			next++;
		m = &mappings[next];
		m->len = len;
		atomic_store(&m->torn, false);
		bytes += len;
		used++;
		rc = next++;
		atomic_store_explicit(&m->start, (uintptr_t)map, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* Must be called before the range is unmapped. */
void shm_guard_remove(int guard)
{
	if (guard < 0)
		return;
	pthread_mutex_lock(&lock);
	atomic_store_explicit(&mappings[guard].start, 0, memory_order_release);
	next = guard < next ? guard : next;
	bytes -= mappings[guard].len;
	used--;
	pthread_mutex_unlock(&lock);
}

bool shm_guard_torn(int guard)
{
	return guard >= 0 && atomic_load(&mappings[guard].torn);
}

/* Returns the number of further mappings that the process may have. */
uint32_t shm_guard_free(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = SHM_MAX_MAPPINGS - used;
	pthread_mutex_unlock(&lock);
	return (uint32_t)n;
}
