/*
 * A resumable stream of messages over whatever queue pair there is: this end of it. Package aggregate/session states what holds
 * of it, and has the other end; one script drives both (aggregate/session/testdata/stream).
 */
#ifndef RW_STREAM_H
#define RW_STREAM_H

#include <stdint.h>

#include "../fabric/base/fabric.h"

struct stream {
	struct rwf_send_wr *ring; /* messages not known to have arrived, oldest first from head on */
	uint32_t depth, head;
	uint32_t held;     /* in the ring */
	uint32_t unposted; /* of those, the youngest: the present queue pair was not given them */
	uint64_t done;     /* messages that left the ring, ever */
	uint64_t reached;  /* messages that were given to any queue pair, ever */
	uint64_t received; /* messages from the peer, ever */
	uint8_t broken;    /* nothing is posted until stream_resume */
};

int stream_init(struct stream *s, uint32_t depth);
void stream_free(struct stream *s);

/* The i-th oldest message. */
static inline struct rwf_send_wr *stream_at(const struct stream *s, uint32_t i)
{
	i += s->head;
	return &s->ring[i < s->depth ? i : i - s->depth];
}

/* Where the next message goes, NULL while the ring is full. It counts once it is put. */
static inline struct rwf_send_wr *stream_place(const struct stream *s)
{
	return s->held < s->depth ? stream_at(s, s->held) : NULL;
}

static inline void stream_put(struct stream *s)
{
	s->held++;
	s->unposted++;
}

/* Messages to post, oldest first: all that wait, or those up to the ring's end; 0 after a break. */
uint32_t stream_next(const struct stream *s, struct rwf_send_wr **first);
/* A queue pair was given the n oldest messages that wait. */
void stream_posted(struct stream *s, uint32_t n);
/* The n oldest messages have arrived. */
void stream_sent(struct stream *s, uint32_t n);
/*
 * Takes out what has arrived at a peer that has received so many messages, and makes all others wait for another queue pair.
 * -EPROTO for a count that cannot be true, and nothing changes.
 */
int stream_resume(struct stream *s, uint64_t peer_received);

#endif
