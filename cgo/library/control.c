/* Requests to rackweave run (control.h). */
#include "control.h"
#include "library.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Answers come from the aggregator, which says itself what it waited for in vain. */
enum { PATIENCE_S = 10, USUAL_TIMEOUT_S = 60 };

int control_open(void)
{
	const char *path = getenv("RACKWEAVE_CONTROL");
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd, rc = 0;

	if (!path)
		return rwf_fail(ENOENT, "join: RACKWEAVE_CONTROL is not set: start the program by rackweave run");
	if (strlen(path) >= sizeof at.sun_path)
		return rwf_fail(ENAMETOOLONG, "join: RACKWEAVE_CONTROL=%s: a socket's path has at most %zu bytes", path,
				sizeof at.sun_path - 1);
	strcpy(at.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof at)) {
		rc = rwf_fail(errno, "join: %s: %s: is the rackweave run that started the program there?", path, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
	return rc ? rc : fd;
}

enum direction { SEND, RECEIVE };

static int transfer(int fd, enum direction way, void *p, size_t bytes)
{
	for (char *at = p; bytes > 0;) {
		ssize_t n = way == SEND ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return rwf_fail(ECONNRESET, "rackweave run: %s", n == 0 ? "it closed the connection" : strerror(errno));
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* Takes the text of a refusal. */
static int refused(int fd, uint32_t bytes)
{
	char *text = calloc(1, (size_t)bytes + 1);
	int rc = text ? transfer(fd, RECEIVE, text, bytes) : rwf_fail(ENOMEM, "rackweave run: no memory for its refusal");

	if (!rc)
		rc = rwf_fail(-RW_EABORTED, "%s", text);
	free(text);
	return rc;
}

int control_call(int fd, uint32_t kind, void *request, uint32_t bytes, void **answer, uint32_t *n, uint32_t timeout_ms)
{
	const struct timeval limit = {.tv_sec = PATIENCE_S + (timeout_ms ? timeout_ms / 1000 : USUAL_TIMEOUT_S)};
	struct control_head head = {kind, bytes};
	int rc;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	if ((rc = transfer(fd, SEND, &head, sizeof head)) || (rc = transfer(fd, SEND, request, bytes)) ||
	    (rc = transfer(fd, RECEIVE, &head, sizeof head)))
		return rc;
	if (head.kind == CONTROL_ERROR && head.bytes <= CONTROL_MAX_BYTES)
		return refused(fd, head.bytes);
	if (head.kind != kind || head.bytes > CONTROL_MAX_BYTES || (*answer && head.bytes != *n))
		return rwf_fail(EPROTO, "rackweave run: request %u has answer %u of %u bytes: it is of another version", kind,
				head.kind, head.bytes);
	*n = head.bytes;
	if (!*answer && head.bytes && !(*answer = malloc(head.bytes)))
		return rwf_fail(ENOMEM, "rackweave run: no memory for an answer of %u bytes", head.bytes);
	return transfer(fd, RECEIVE, *answer, head.bytes);
}
