/*
 * This end of a resumable stream of messages over any queue pair. Package aggregate/session states its invariants, and has the
 * other end. One script drives both (aggregate/session/testdata/stream).
 */
#ifndef RW_STREAM_H
#define RW_STREAM_H

#include <stdint.h>

#include "../fabric/base/fabric.h"

struct stream {
	struct rwf_send_wr *ring; /* messages not known to have arrived, oldest first from head on */
	uint32_t depth, head;
	uint32_t held;     /* in the ring */
	uint32_t unposted; /* the youngest of the held messages, which the present queue pair has not taken */
	uint64_t done;     /* messages that left the ring, ever */
	uint64_t reached;  /* messages that any queue pair took, ever */
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

/* Returns the place of the next message, or NULL if the ring is full. The message counts after stream_put. */
static inline struct rwf_send_wr *stream_place(const struct stream *s)
{
	return s->held < s->depth ? stream_at(s, s->held) : NULL;
}

static inline void stream_put(struct stream *s)
{
	s->held++;
	s->unposted++;
}

/*
 * Returns the number of messages to post, oldest first: all that wait, or the ones up to the ring's end. Returns 0 after a break.
 */
uint32_t stream_next(const struct stream *s, struct rwf_send_wr **first);
/* Records that a queue pair has taken the n oldest waiting messages. */
void stream_posted(struct stream *s, uint32_t n);
/* Records that the n oldest messages have arrived. */
void stream_sent(struct stream *s, uint32_t n);
/*
 * Removes the messages that have arrived at a peer that has received so many, and makes all others wait for another queue pair.
 * Returns -EPROTO for an impossible count, and changes nothing then.
 */
int stream_resume(struct stream *s, uint64_t peer_received);

#endif
