#include "seal.h"

#include "../base/bytes.h"
#include "../base/provider.h"
#include "hmac.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/tls.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	KEY_LEN = 16,
	IV_LEN = 12,
	TAG_LEN = 16,
	HEAD_LEN = 5,
	MAX_PLAIN = 1 << 14,
	MAX_SEALED = HEAD_LEN + MAX_PLAIN + 1 + TAG_LEN,
	RECORDS = 3, /* so that a chunk of 32 KiB and its head go in one system call */
	APPLICATION_DATA = 23,
	GET_TAG = 0x10, /* EVP_CTRL_AEAD_GET_TAG */
	SET_TAG = 0x11,
};

/* libcrypto's functions that are used here, the same since OpenSSL 1.1. */
static struct {
	void *(*ctx_new)(void);
	void (*ctx_free)(void *ctx);
	const void *(*aes_128_gcm)(void);
	int (*init)(void *ctx, const void *cipher, void *engine, const uint8_t *key, const uint8_t *iv, int encrypt);
	int (*update)(void *ctx, uint8_t *out, int *out_len, const uint8_t *in, int len);
	int (*final)(void *ctx, uint8_t *out, int *out_len);
	int (*ctrl)(void *ctx, int type, int arg, void *ptr);
	bool there;
} evp;

static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_libcrypto(void)
{
	static const struct {
		const char *name;
		void *at;
	} symbols[] = {
		{"EVP_CIPHER_CTX_new", &evp.ctx_new}, {"EVP_CIPHER_CTX_free", &evp.ctx_free}, {"EVP_aes_128_gcm", &evp.aes_128_gcm},
		{"EVP_CipherInit_ex", &evp.init},     {"EVP_CipherUpdate", &evp.update},      {"EVP_CipherFinal_ex", &evp.final},
		{"EVP_CIPHER_CTX_ctrl", &evp.ctrl},
	};
	void *lib = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		lib = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return;
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *at = dlsym(lib, symbols[i].name);

		if (!at)
			return;
		memcpy(symbols[i].at, &at, sizeof at);
	}
	evp.there = true;
}

int tcp_seal_load(void)
{
	pthread_once(&opened, open_libcrypto);
	if (evp.there)
		return 0;
	return rwf_fail(ELIBACC,
			"encrypt connections: libcrypto.so.3 cannot be loaded: install OpenSSL's library (Debian: libssl3)");
}

/* One direction. */
struct direction {
	void *ctx;
	uint8_t key[KEY_LEN], iv[IV_LEN];
	uint64_t seq;
	/* Out: sealed bytes that the socket has not taken. In: bytes not opened yet, from at to end; before it, those opened. */
	uint32_t at, end;
	uint32_t plain, plain_end; /* in: opened, and not taken */
	uint8_t buf[RECORDS * MAX_SEALED];
};

struct tcp_seal {
	struct direction out, in;
};

static int open_direction(struct direction *w, const uint8_t secret[2 * TCP_COOKIE_LEN], const char *label, int encrypt)
{
	uint8_t derived[TCP_DIGEST_LEN];

	tcp_hmac(secret, 2 * TCP_COOKIE_LEN, (const uint8_t *)label, strlen(label), derived);
	memcpy(w->key, derived, KEY_LEN);
	memcpy(w->iv, derived + KEY_LEN, IV_LEN);
	w->ctx = evp.ctx_new();
	return w->ctx && evp.init(w->ctx, evp.aes_128_gcm(), NULL, w->key, NULL, encrypt) == 1;
}

int tcp_seal_make(const uint8_t active[TCP_COOKIE_LEN], const uint8_t passive[TCP_COOKIE_LEN], bool is_active,
		  struct tcp_seal **out)
{
	static const char from_active[] = "rackweave tcp, from the active side",
			  from_passive[] = "rackweave tcp, from the passive side";
	uint8_t secret[2 * TCP_COOKIE_LEN];
	struct tcp_seal *seal;
	int rc;

	rc = tcp_seal_load();
	if (rc)
		return rc;
	seal = calloc(1, sizeof *seal);
	if (!seal)
		return rwf_fail(ENOMEM, "encrypt a connection: out of memory");
	memcpy(secret, active, TCP_COOKIE_LEN);
	memcpy(secret + TCP_COOKIE_LEN, passive, TCP_COOKIE_LEN);
	if (!open_direction(&seal->out, secret, is_active ? from_active : from_passive, 1) ||
	    !open_direction(&seal->in, secret, is_active ? from_passive : from_active, 0)) {
		tcp_seal_free(seal);
		return rwf_fail(ENOSYS, "encrypt a connection: libcrypto here has no AES-128-GCM");
	}
	*out = seal;
	return 0;
}

void tcp_seal_free(struct tcp_seal *seal)
{
	if (!seal)
		return;
	if (seal->out.ctx)
		evp.ctx_free(seal->out.ctx);
	if (seal->in.ctx)
		evp.ctx_free(seal->in.ctx);
	free(seal);
}

uint32_t tcp_seal_bytes(void)
{
	enum { CIPHER = 1 << 10 }; /* libcrypto's own for a direction, roughly */

	return sizeof(struct tcp_seal) + 2 * CIPHER;
}

static int offload(const struct direction *w, int fd, int which)
{
	struct tls12_crypto_info_aes_gcm_128 info = {.info = {.version = TLS_1_3_VERSION, .cipher_type = TLS_CIPHER_AES_GCM_128}};

	memcpy(info.key, w->key, sizeof info.key);
	memcpy(info.salt, w->iv, sizeof info.salt);
	memcpy(info.iv, w->iv + sizeof info.salt, sizeof info.iv);
	return setsockopt(fd, SOL_TLS, which, &info, sizeof info);
}

int tcp_seal_offload(const struct tcp_seal *seal, int fd)
{
	if (setsockopt(fd, SOL_TCP, TCP_ULP, "tls", sizeof "tls") || offload(&seal->in, fd, TLS_RX))
		return 0;
	return offload(&seal->out, fd, TLS_TX) ? -1 : 1;
}

/* Begins a record: its nonce is the initial value and its number. */
static bool begin(struct direction *w, const uint8_t head[HEAD_LEN])
{
	uint8_t nonce[IV_LEN];
	int n;

	memcpy(nonce, w->iv, IV_LEN);
	for (int i = 0; i < 8; i++)
		nonce[IV_LEN - 1 - i] ^= (uint8_t)(w->seq >> 8 * i);
	w->seq++;
	return evp.init(w->ctx, NULL, NULL, NULL, nonce, -1) == 1 && evp.update(w->ctx, NULL, &n, head, HEAD_LEN) == 1;
}

/* A place in a list of buffers. */
struct place {
	const struct iovec *iov;
	int n;
	size_t skip, total; /* in the first; of all */
};

/* Returns the next piece of at most so many bytes, and steps over it. */
static size_t next(struct place *p, size_t most, uint8_t **piece)
{
	size_t length;

	while (p->skip == p->iov->iov_len) {
		p->iov++;
		p->n--;
		p->skip = 0;
	}
	*piece = (uint8_t *)p->iov->iov_base + p->skip;
	length = p->iov->iov_len - p->skip < most ? p->iov->iov_len - p->skip : most;
	p->skip += length;
	p->total -= length;
	return length;
}

static struct place start(const struct iovec *iov, int n)
{
	struct place p = {.iov = iov, .n = n};

	for (int i = 0; i < n; i++)
		p.total += iov[i].iov_len;
	return p;
}

/* Seals the next bytes of a place into a record behind those that wait. */
static bool seal_record(struct direction *w, struct place *from)
{
	size_t rest = from->total < MAX_PLAIN ? from->total : MAX_PLAIN, sealed = rest + 1 + TAG_LEN;
	static const uint8_t type = APPLICATION_DATA;
	uint8_t *to = w->buf + w->end, *piece;
	int n;

	to[0] = APPLICATION_DATA;
	to[1] = to[2] = 3; /* as TLS 1.2 says of itself */
	to[3] = (uint8_t)(sealed >> 8);
	to[4] = (uint8_t)sealed;
	if (!begin(w, to))
		return false;
	to += HEAD_LEN;
	while (rest) {
		size_t length = next(from, rest, &piece);

		if (evp.update(w->ctx, to, &n, piece, (int)length) != 1)
			return false;
		to += length;
		rest -= length;
	}
	if (evp.update(w->ctx, to, &n, &type, 1) != 1 || evp.final(w->ctx, to + 1, &n) != 1 ||
	    evp.ctrl(w->ctx, GET_TAG, TAG_LEN, to + 1) != 1)
		return false;
	w->end += HEAD_LEN + (uint32_t)sealed;
	return true;
}

int tcp_seal_flush(struct tcp_seal *seal, int fd)
{
	struct direction *w = &seal->out;

	while (w->at < w->end) {
		ssize_t n = send(fd, w->buf + w->at, w->end - w->at, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -1;
		w->at += (uint32_t)n;
	}
	w->at = w->end = 0;
	return 1;
}

bool tcp_seal_waits(const struct tcp_seal *seal)
{
	return seal->out.end != 0;
}

ssize_t tcp_seal_send(struct tcp_seal *seal, int fd, const struct iovec *iov, int n)
{
	struct place from = start(iov, n);
	size_t total = from.total;
	int flushed;

	while ((flushed = tcp_seal_flush(seal, fd)) > 0 && from.total)
		while (from.total && sizeof seal->out.buf - seal->out.end >= MAX_SEALED)
			if (!seal_record(&seal->out, &from)) {
				errno = EIO;
				return -1;
			}
	if (flushed < 0 || from.total == total)
		return -1; /* as errno says */
	return (ssize_t)(total - from.total);
}

/* Opens the next record where it lies. Returns 1, 0 where it is not all there, -1 where nobody who knows the key made it. */
static int open_record(struct direction *w)
{
	uint8_t *at = w->buf + w->at;
	uint32_t have = w->end - w->at, sealed;
	uint8_t none[TAG_LEN]; /* the cipher's mode leaves no rest */
	int n;

	if (have < HEAD_LEN)
		return 0;
	sealed = (uint32_t)at[3] << 8 | at[4];
	if (at[0] != APPLICATION_DATA || at[1] != 3 || at[2] != 3 || sealed < 1 + TAG_LEN || sealed > MAX_SEALED - HEAD_LEN)
		return -1;
	if (have < HEAD_LEN + sealed)
		return 0;
	if (!begin(w, at) || evp.update(w->ctx, at + HEAD_LEN, &n, at + HEAD_LEN, (int)(sealed - TAG_LEN)) != 1 ||
	    evp.ctrl(w->ctx, SET_TAG, TAG_LEN, at + HEAD_LEN + sealed - TAG_LEN) != 1 || evp.final(w->ctx, none, &n) != 1)
		return -1;
	w->plain = w->at + HEAD_LEN;
	w->plain_end = w->plain + sealed - TAG_LEN - 1;
	w->at += HEAD_LEN + sealed;
	return w->buf[w->plain_end] == APPLICATION_DATA ? 1 : -1;
}

/* Reads what the socket has behind what is there. */
static ssize_t fill(struct direction *w, int fd)
{
	ssize_t n;

	memmove(w->buf, w->buf + w->at, w->end - w->at);
	w->end -= w->at;
	w->at = w->plain = w->plain_end = 0;
	do
		n = read(fd, w->buf + w->end, sizeof w->buf - w->end);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		w->end += (uint32_t)n;
	return n;
}

/* Returns less than there is room only when the socket has no more. */
ssize_t tcp_seal_read(struct tcp_seal *seal, int fd, const struct iovec *iov, int n)
{
	struct direction *w = &seal->in;
	struct place to = start(iov, n);
	size_t room = to.total;
	uint8_t *piece;

	while (to.total) {
		ssize_t got;
		int rc;

		if (w->plain < w->plain_end) {
			size_t length = next(&to, w->plain_end - w->plain, &piece);

			memcpy(piece, w->buf + w->plain, length);
			w->plain += (uint32_t)length;
			continue;
		}
		rc = open_record(w);
		if (rc < 0) {
			errno = EBADMSG;
			return -1;
		}
		if (rc)
			continue;
		got = fill(w, fd);
		if (got <= 0)
			return room > to.total ? (ssize_t)(room - to.total) : got;
	}
	return (ssize_t)room;
}
