/* Clocks, and waiting for files. */
#ifndef RW_FABRIC_WAIT_H
#define RW_FABRIC_WAIT_H

#include <poll.h>
#include <stdint.h>

enum { RWB_NS_PER_MS = 1000000 };

/* Reads the monotonic clock. */
uint64_t rwb_now_ns(void);
/* Reads the same clock in milliseconds, as of the kernel's last timer tick. It is cheap, and up to some milliseconds late. */
uint64_t rwb_now_ms(void);

/* Waits up to ns for one of the files, as poll(2) does, and continues after a signal. */
int rwb_poll(struct pollfd *fds, nfds_t n, uint64_t ns);

/* Makes an eventfd readable, from any thread or signal handler. */
void rwb_notify(int event_fd);
/* Makes it unreadable again. */
void rwb_clear(int event_fd);

/*
 * Takes a step of an active connect's wait. Returns 1 when fd is ready, 0 after ns, or a negative errno: -ECANCELED when cancel_fd
 * ended the wait. fd is -1 to wait for the time alone, and cancel_fd is 0 without such a file. Sets rwf_last_error().
 */
int rwb_connect_wait(int fd, short events, int cancel_fd, uint64_t ns);

#endif
