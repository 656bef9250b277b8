/*
 * Encryption of a connection by the kernel's TLS: the stream goes as TLS 1.3 records of application data (RFC 8446 5.2),
 * AES-128-GCM, without TLS's handshake. Only the two ends know the cookies of both queue pairs, and no two connections have
 * the same two.
 */
#include "tcp.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int use(int fd)
{
	return setsockopt(fd, SOL_TCP, TCP_ULP, "tls", sizeof "tls");
}

/* TLS refuses a socket because it is not connected. A kernel without TLS gives another reason. */
int tcp_tls_probe(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;

	if (fd < 0)
		return rwf_fail(errno, "encrypt connections: open a socket: %s", strerror(errno));
	if (use(fd) && errno != ENOTCONN)
		rc = rwf_fail(
			EPROTONOSUPPORT,
			"encrypt connections: this kernel has no TLS (%s): load its module as root (modprobe tls), or encrypt the "
			"network by WireGuard instead",
			strerror(errno));
	close(fd);
	return rc;
}

static int set_keys(int fd, int direction, const uint8_t cookies[2 * TCP_COOKIE_LEN], bool from_active)
{
	const char *label = from_active ? "rackweave tcp, from the active side" : "rackweave tcp, from the passive side";
	struct tls12_crypto_info_aes_gcm_128 info = {.info = {.version = TLS_1_3_VERSION, .cipher_type = TLS_CIPHER_AES_GCM_128}};
	uint8_t derived[TCP_DIGEST_LEN], *next = derived;
	int rc;

	tcp_hmac(cookies, 2 * TCP_COOKIE_LEN, (const uint8_t *)label, strlen(label), derived);
	memcpy(info.key, next, sizeof info.key);
	next += sizeof info.key;
	memcpy(info.salt, next, sizeof info.salt);
	next += sizeof info.salt;
	memcpy(info.iv, next, sizeof info.iv);
	rc = setsockopt(fd, SOL_TLS, direction, &info, sizeof info);
	explicit_bzero(derived, sizeof derived);
	explicit_bzero(&info, sizeof info);
	return rc;
}

int tcp_tls_begin(const struct tcp_qp *qp)
{
	uint8_t cookies[2 * TCP_COOKIE_LEN]; /* of the active side, then of the passive side */

	memcpy(cookies, qp->active ? qp->cookie : qp->peer.cookie, TCP_COOKIE_LEN);
	memcpy(cookies + TCP_COOKIE_LEN, qp->active ? qp->peer.cookie : qp->cookie, TCP_COOKIE_LEN);
	return use(qp->fd) || set_keys(qp->fd, TLS_RX, cookies, !qp->active) || set_keys(qp->fd, TLS_TX, cookies, qp->active) ? -1
															      : 0;
}
