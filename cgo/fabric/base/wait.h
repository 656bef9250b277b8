/* Clocks, and waiting for files. */
#ifndef RW_FABRIC_WAIT_H
#define RW_FABRIC_WAIT_H

#include <poll.h>
#include <stdint.h>

enum { RWB_NS_PER_MS = 1000000 };

/* The monotonic clock. */
uint64_t rwb_now_ns(void);
/* The same in milliseconds, by the last tick of the kernel's timer: cheap, and up to some milliseconds late. */
uint64_t rwb_now_ms(void);

/* Waits up to ns for one of the files: poll(2), to the nanosecond, and on with what is left after a signal. */
int rwb_poll(struct pollfd *fds, nfds_t n, uint64_t ns);

/* Makes an eventfd readable, from any thread or signal handler. */
void rwb_notify(int event_fd);
/* Takes what rwb_notify left. */
void rwb_clear(int event_fd);

/*
 * A step of an active connect's wait: 1 once fd is ready, 0 after ns, or the negative errno, -ECANCELED of a wait that was
 * ended by cancel_fd. fd -1: for the time alone; cancel_fd 0: none. Sets rwf_last_error().
 */
int rwb_connect_wait(int fd, short events, int cancel_fd, uint64_t ns);

#endif
