/* Codecs that the aggregator chooses while the job runs. */
#include "control.h"
#include "library.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void *follow(void *arg)
{
	rw_session *s = arg;
	struct control_accept last = {0};
	void *answer = NULL;
	uint32_t n;

	while (control_call(s->codecs, CONTROL_CODECS, &last, sizeof last, &answer, &n, UINT32_MAX) == 0) {
		const struct control_codecs *to = answer;
		const struct rw_codec *codecs = (const struct rw_codec *)(to + 1);

		last.accepted = n >= sizeof *to;
		for (uint32_t i = 0; last.accepted && i < (n - sizeof *to) / sizeof *codecs; i++)
			last.accepted = rw_compress_from(s, i, &codecs[i], to->from) == 0;
		free(answer);
		answer = NULL;
	}
	free(answer);
	return NULL;
}

int codecs_follow(struct rw_session *s)
{
	int rc;

	s->codecs = control_open();
	if (s->codecs < 0)
		return s->codecs;
	rc = thread_start(&s->codecs_thread, "rackweave-codec", follow, s);
	if (rc) {
		close(s->codecs);
		s->codecs = -1;
	}
	return rc;
}

void codecs_end(struct rw_session *s)
{
	if (s->codecs < 0)
		return;
	shutdown(s->codecs, SHUT_RDWR);
	pthread_join(s->codecs_thread, NULL);
	close(s->codecs);
	s->codecs = -1;
}
