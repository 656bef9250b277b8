/* The resumable stream (stream.h). */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>

int stream_init(struct stream *s, uint32_t depth)
{
	*s = (struct stream){.ring = calloc(depth, sizeof *s->ring), .depth = depth};
	return s->ring ? 0 : -ENOMEM;
}

void stream_free(struct stream *s)
{
	free(s->ring);
	s->ring = NULL;
}

uint32_t stream_next(const struct stream *s, struct rwf_send_wr **first)
{
	uint32_t to_end;

	if (s->broken || s->unposted == 0)
		return 0;
	*first = stream_at(s, s->held - s->unposted);
	to_end = s->depth - (uint32_t)(*first - s->ring);
	return s->unposted < to_end ? s->unposted : to_end;
}

void stream_posted(struct stream *s, uint32_t n)
{
	s->unposted -= n;
	if (s->done + s->held - s->unposted > s->reached)
		s->reached = s->done + s->held - s->unposted;
}

void stream_sent(struct stream *s, uint32_t n)
{
	s->head = (uint32_t)(((uint64_t)s->head + n) % s->depth);
	s->held -= n;
	s->done += n;
}

int stream_resume(struct stream *s, uint64_t peer_received)
{
	if (peer_received < s->done || peer_received > s->reached)
		return -EPROTO;
	stream_sent(s, (uint32_t)(peer_received - s->done));
	s->unposted = s->held;
	s->broken = 0;
	return 0;
}
