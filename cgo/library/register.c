/* Keeps a session's memory regions in step with the arenas. */
#include "library.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct registered *known(struct rw_session *s, uint64_t serial)
{
	for (uint32_t i = 0; i < s->nmemory; i++)
		if (s->memory[i].serial == serial)
			return &s->memory[i];
	return NULL;
}

/* A device that takes no more regions does not fail it: what lies there is copied. */
static void take(struct rw_session *s, const struct memory *m, struct registered *r)
{
	uint32_t n = 0;

	*r = (struct registered){.serial = m->serial, .seen = 1};
	while (n < s->nnics && rwf_reg_mr(s->nics[n].pd, m->addr, m->bytes, RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE, m->fd,
					  0, &r->mr[n]) == 0)
		n++;
	if (n == s->nnics && rw_worker_region(s->worker, r->mr) == 0)
		return;
	while (n-- > 0)
		rwf_dereg_mr(s->nics[n].pd, r->mr[n].lkey);
	r->failed = 1;
}

static void look(const struct memory *m, void *arg)
{
	struct rw_session *s = arg;
	struct registered *r = known(s, m->serial), *more;

	if (r) {
		r->seen = 1;
		return;
	}
	more = realloc(s->memory, (s->nmemory + 1) * sizeof *more);
	if (!more)
		return; /* as where a device does not take it */
	s->memory = more;
	take(s, m, &s->memory[s->nmemory++]);
}

/* Drops regions whose memory has left the arena. */
static void drop(struct rw_session *s)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < s->nmemory; i++) {
		struct registered *r = &s->memory[i];

		if (r->seen) {
			s->memory[kept++] = *r;
			continue;
		}
		if (r->failed)
			continue;
		rw_worker_forget(s->worker, r->mr[0].addr);
		for (uint32_t nic = 0; nic < s->nnics; nic++)
			rwf_dereg_mr(s->nics[nic].pd, r->mr[nic].lkey);
	}
	s->nmemory = kept;
}

void session_register(struct rw_session *s)
{
	uint64_t generation = arena_generation();

	if (__atomic_load_n(&s->generation, __ATOMIC_ACQUIRE) == generation)
		return;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->nmemory; i++)
		s->memory[i].seen = 0;
	arena_each(look, s);
	drop(s);
	__atomic_store_n(&s->generation, generation, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&s->lock);
}

const struct registered *session_memory(const struct rw_session *s, const void *p)
{
	for (uint32_t i = 0; i < s->nmemory; i++) {
		const struct registered *r = &s->memory[i];

		if (!r->failed && (uintptr_t)p - r->mr[0].addr < r->mr[0].length)
			return r;
	}
	return NULL;
}
