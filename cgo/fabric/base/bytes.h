/* Numbers in bytes, little-endian, anywhere. A put returns what follows. */
#ifndef RW_FABRIC_BYTES_H
#define RW_FABRIC_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint8_t *rwb_put16(uint8_t *p, uint16_t v)
{
	v = htole16(v);
	return (uint8_t *)memcpy(p, &v, sizeof v) + sizeof v;
}

static inline uint8_t *rwb_put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	return (uint8_t *)memcpy(p, &v, sizeof v) + sizeof v;
}

static inline uint8_t *rwb_put64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	return (uint8_t *)memcpy(p, &v, sizeof v) + sizeof v;
}

static inline uint16_t rwb_get16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof v);
	return le16toh(v);
}

static inline uint32_t rwb_get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

static inline uint64_t rwb_get64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof v);
	return le64toh(v);
}

#endif
