/* HMAC with SHA-256 (RFC 2104, FIPS 180-4), of short messages. */
#ifndef RW_TCP_HMAC_H
#define RW_TCP_HMAC_H

#include <stddef.h>
#include <stdint.h>

enum { TCP_DIGEST_LEN = 32, TCP_HMAC_MOST = 64 };

/* Neither the key nor the message may be longer than TCP_HMAC_MOST bytes. */
void tcp_hmac(const uint8_t *key, size_t key_len, const uint8_t *message, size_t len, uint8_t out[TCP_DIGEST_LEN]);

#endif
