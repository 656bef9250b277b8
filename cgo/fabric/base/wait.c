#define _GNU_SOURCE /* ppoll */
#include "wait.h"

#include "provider.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t rwb_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t rwb_now_ms(void)
{
	return read_clock(CLOCK_MONOTONIC_COARSE) / RWB_NS_PER_MS;
}

int rwb_poll(struct pollfd *fds, nfds_t n, uint64_t ns)
{
	uint64_t end = rwb_now_ns() + ns;

	for (;;) {
		struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
		int ready = ppoll(fds, n, &t, NULL);
		uint64_t now;

		if (ready >= 0 || errno != EINTR)
			return ready;
		now = rwb_now_ns();
		ns = now < end ? end - now : 0;
	}
}

void rwb_notify(int event_fd)
{
	/* The only failure is a counter at its end. The file is readable already then. */
	(void)eventfd_write(event_fd, 1);
}

/* Takes no lock, because a signal handler may have interrupted the lock's holder. */
int rwf_wake_cq(rwf_cq *cq)
{
	cq->woken = true;
	rwb_notify(cq->wake_fd);
	return 0;
}

void rwb_clear(int event_fd)
{
	eventfd_t count;

	(void)eventfd_read(event_fd, &count);
}

int rwb_connect_wait(int fd, short events, int cancel_fd, uint64_t ns)
{
	struct pollfd p[2] = {{fd, events, 0}, {cancel_fd > 0 ? cancel_fd : -1, POLLIN, 0}};

	if (rwb_poll(p, 2, ns) < 0)
		return rwf_fail(errno, "connect: poll: %s", strerror(errno));
	if (p[1].revents)
		return rwf_fail(ECANCELED, "connect: given up");
	return p[0].revents != 0;
}
