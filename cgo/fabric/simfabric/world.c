/* Worlds: their table, their randomness, their log. */
#include "world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLDS = 1024 };

/* World 0 is the process's own. The others come from rwf_sim_new. */
static struct rwf_sim *worlds[MAX_WORLDS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct rwf_sim *world_new(int id, uint64_t seed)
{
	struct rwf_sim *w = calloc(1, sizeof *w);

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	w->id = id;
	w->rng = seed;
	w->hash = 0xcbf29ce484222325; /* FNV-1a's offset basis */
	w->trace_fd = -1;
	TAILQ_INIT(&w->due);
	if (id == 0) {
		w->automatic = w->network.by_time = true;
		w->start_ns = rwb_now_ns();
	}
	worlds[id] = w;
	return w;
}

struct rwf_sim *rwf_sim_new(uint64_t seed)
{
	struct rwf_sim *w = NULL;

	pthread_mutex_lock(&table_lock);
	for (int id = 1; id < MAX_WORLDS && !w; id++)
		if (!worlds[id])
			w = world_new(id, seed);
	if (w)
		w->refs++;
	pthread_mutex_unlock(&table_lock);
	return w;
}

void rwf_sim_free(struct rwf_sim *w)
{
	bool last;

	pthread_mutex_lock(&table_lock);
	last = --w->refs == 0;
	if (last)
		worlds[w->id] = NULL;
	pthread_mutex_unlock(&table_lock);
	if (!last)
		return;
	pthread_mutex_destroy(&w->lock);
	free(w);
}

struct rwf_sim *sim_world_join(int id)
{
	struct rwf_sim *w = NULL;

	pthread_mutex_lock(&table_lock);
	if (id < MAX_WORLDS)
		w = id || worlds[id] ? worlds[id] : world_new(0, 1);
	if (w)
		w->refs++;
	else
		rwf_fail(ENODEV, "open sim: unknown world %d: make it with rwf_sim_new", id);
	pthread_mutex_unlock(&table_lock);
	return w;
}

int rwf_sim_id(const struct rwf_sim *w)
{
	return w->id;
}

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): one word of state, passes BigCrush. */
uint64_t sim_random(struct rwf_sim *w, uint64_t below)
{
	uint64_t z = w->rng += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	z ^= z >> 31;
	return below ? z % below : 0;
}

bool sim_chance(struct rwf_sim *w, enum rwf_sim_fault fault)
{
	const uint32_t in_65536 = w->network.chances[fault];
	const bool fatal = fault >= RWF_SIM_STALE_KEY;

	if (fatal && w->network.fatal_max && w->fatal_count >= w->network.fatal_max)
		return false;
	if (!in_65536 || sim_random(w, 65536) >= in_65536)
		return false;
	w->fatal_count += fatal;
	return true;
}

/* Draws the latency of a message. In random order the order itself is the delay, besides an injected one. */
uint64_t sim_latency(struct rwf_sim *w)
{
	uint64_t ns = w->network.by_time ? 300 + sim_random(w, 2700) : 0;

	if (sim_chance(w, RWF_SIM_DELAY))
		ns += sim_random(w, w->network.delay_max_ns + 1);
	return ns;
}

static void mix(struct rwf_sim *w, const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		w->hash = (w->hash ^ ((const uint8_t *)p)[i]) * 0x100000001b3;
}

void sim_log(struct rwf_sim *w, const char *what, uint32_t who, uint32_t a, uint32_t b)
{
	uint64_t words[] = {w->now_ns, (uint64_t)who << 32 | a, b};

	mix(w, what, strlen(what));
	mix(w, words, sizeof words);
	if (w->trace_fd >= 0)
		dprintf(w->trace_fd, "%12llu ns  %-14s 0x%x  0x%x  %u\n", (unsigned long long)w->now_ns, what, who, a, b);
}
