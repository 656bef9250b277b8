/*
 * Encryption of a connection: the stream goes as TLS 1.3 records of application data (RFC 8446 5.2), AES-128-GCM, without
 * TLS's handshake: both ends know the cookies of both queue pairs, which nobody else was told, and no two connections have the
 * same two. The kernel's TLS does the work where it is there, else libcrypto, behind dlopen: nobody else needs it.
 */
#ifndef RW_TCP_SEAL_H
#define RW_TCP_SEAL_H

#include "wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct tcp_seal;

/* Returns an error where there is no libcrypto to load: what the kernel can do is known only of a connected socket. */
int tcp_seal_load(void);

/* Makes the state of a connection. */
int tcp_seal_make(const uint8_t active[TCP_COOKIE_LEN], const uint8_t passive[TCP_COOKIE_LEN], bool is_active,
		  struct tcp_seal **out);
void tcp_seal_free(struct tcp_seal *seal);

/* What it takes in memory. */
uint32_t tcp_seal_bytes(void);

/*
 * Hands a connection that is to begin to the kernel's TLS. Returns 1 when it has it: the socket then does all, and the seal is of
 * no more use. Returns 0 where the kernel has no TLS, -1 where the connection can not go on.
 */
int tcp_seal_offload(const struct tcp_seal *seal, int fd);

/*
 * As sendmsg(2) and readv(2), but that each goes on until the socket is full or empty. Where tcp_seal_waits, the socket was
 * full, and tcp_seal_flush is to be called when it is not.
 */
ssize_t tcp_seal_send(struct tcp_seal *seal, int fd, const struct iovec *iov, int n);
ssize_t tcp_seal_read(struct tcp_seal *seal, int fd, const struct iovec *iov, int n);

bool tcp_seal_waits(const struct tcp_seal *seal);

/* Hands the socket what it did not take before. Returns 1 when nothing is left, 0 when the socket is full, -1 when it failed. */
int tcp_seal_flush(struct tcp_seal *seal, int fd);

#endif
