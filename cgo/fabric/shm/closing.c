/*
 * Provider shm: closing. The last close of a file may block on others: of a TCP socket with SO_LINGER on its peer, of a file of
 * FUSE on its daemon. So a thread of its own closes each file of a peer. Only files in memory, as all of an honest peer are, close
 * at once.
 */
#define _GNU_SOURCE
#include "shm.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum { MOST = 256 };

static _Atomic int waiting; /* threads that close a file */

static void *close_it(void *fd)
{
	close((int)(intptr_t)fd);
	atomic_fetch_sub(&waiting, 1);
	return NULL;
}

/*
 * Leaves a file to a thread, which blocks signals because they are for threads that the program knows. A file that finds no thread
 * stays open, and newcomers are let in again only when there is room.
 */
void shm_close_later(int fd)
{
	pthread_t thread;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (atomic_fetch_add(&waiting, 1) < MOST && pthread_create(&thread, NULL, close_it, (void *)(intptr_t)fd) == 0)
		pthread_detach(thread);
	else
		atomic_fetch_sub(&waiting, 1);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Reports whether as many files wait to be closed as may. */
bool shm_closing_full(void)
{
	return atomic_load(&waiting) >= MOST;
}

/* Closes a file that this process made, unless fd is -1. */
void shm_close_own(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* Closes a file that came from a peer, unless fd is -1. Returns false if a thread closes it. */
bool shm_close_received(int fd)
{
	bool in_memory = fd < 0 || fcntl(fd, F_GET_SEALS) >= 0;

	if (in_memory)
		shm_close_own(fd);
	else
		shm_close_later(fd);
	return in_memory;
}
