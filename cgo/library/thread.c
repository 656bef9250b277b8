/* Threads of the library's own. */
#define _GNU_SOURCE
#include "library.h"

#include <signal.h>
#include <string.h>

int thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		return rwf_fail(rc, "start a thread for %s: %s", name, strerror(rc));
	pthread_setname_np(*thread, name);
	return 0;
}
