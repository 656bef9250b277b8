/* What the files of librackweave share. Each part uses only those above it. */
#ifndef RW_LIBRARY_H
#define RW_LIBRARY_H

#include "../../include/rackweave.h"
#include "../worker/worker.h"

#include <pthread.h>
#include <sys/types.h>

/* arena.c */

/* Memory that sessions register: a piece of a memfd, mapped. */
struct memory {
	struct memory *next;
	uint64_t serial; /* never used again */
	char *addr;
	size_t bytes;
	int fd;
	uint8_t adopted;
	struct block *blocks; /* if it is a slab, by address */
};
/* Whether memory has come or gone since a call that returned this number. */
uint64_t arena_generation(void);
/* Calls visit for all memory there is, under the arenas' lock. */
void arena_each(void (*visit)(const struct memory *m, void *arg), void *arg);
/* Lists memory, and takes it off the list. The caller holds the lock. */
int arena_list(char *addr, size_t bytes, int fd, int adopted);
void arena_unlist(struct memory *m);
struct memory *arena_find(const void *p, size_t bytes);
int arena_lock(void); /* 0, or RW_EFORKED */
void arena_unlock(void);

/* thread.c */

/* Starts a thread that takes no signals: these are for the program's own. 0, or a negative errno with a text. */
int thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);

/* cache.c */
uint64_t last_level_cache(void); /* bytes that this process can count on */

/* nic.c */

struct nic {
	rwf_device *dev;
	rwf_pd *pd;
	rwf_cq *cq;
	uint32_t flags; /* enum rwf_device_flags */
};
/* Opens the devices that a session needs, and makes each lane's queue pair on one of them. The caller closes what was made. */
int nics_open(const struct rw_config *cfg, struct nic nics[RW_MAX_NICS], uint32_t *count, struct rw_worker_lane *lanes);
void nics_close(struct nic *nics, uint32_t count);

/* session.c */

/* Memory as a session has registered it. */
struct registered {
	uint64_t serial;
	struct rwf_mr mr[RW_MAX_NICS];
	uint8_t seen;
	uint8_t failed; /* a device does not take it: it is copied */
};

struct rw_session {
	pthread_mutex_t lock; /* of what changes after rw_open, but for the worker */
	pid_t owner;
	struct rw_config cfg;
	struct nic nics[RW_MAX_NICS];
	uint32_t nnics;
	struct rw_worker_lane *lanes;
	struct registered *memory;
	uint32_t nmemory;
	uint64_t generation; /* of the arenas, when memory was last brought up to date; atomic */
	void *staging;
	uint32_t nstaging;
	uint8_t connected, threaded;
	uint32_t ntensors; /* atomic */
	rw_worker *worker;
	pthread_t thread;
	int cancel;                   /* a file that rw_abort makes readable */
	int control;                  /* the socket of rackweave run. If none, -1 */
	pthread_mutex_t control_lock; /* one request at a time */
	uint32_t workers, timeout_ms; /* of rw_join */
	struct rw_codec gradients;    /* of tensors that rw_register adds */
	int codecs;                   /* the socket by which codecs come, which codecs_thread reads. If none, -1 */
	pthread_t codecs_thread;
	struct trace *trace; /* of operations, atomic. If NULL, none is kept */
};

void session_free(struct rw_session *s);
int session_usable(const struct rw_session *s); /* 0 or RW_EFORKED */

/* Returns rc, and gives a failure of the worker its text. */
int explain(rw_worker *w, int rc);

/* register.c */
void session_register(struct rw_session *s);
/* The registered memory that p lies in; under the session's lock, or while nothing can change it. */
const struct registered *session_memory(const struct rw_session *s, const void *p);

/* control.c */

/* Sends a request and takes its answer: of n bytes into answer, or, where *answer is NULL, of any size into memory to be freed. */
int control_call(int fd, uint32_t kind, void *request, uint32_t bytes, void **answer, uint32_t *n, uint32_t timeout_ms);
/* Connects to rackweave run. */
int control_open(void);

/* codecs.c */

/* Takes the codecs that the aggregator chooses while the job runs, until codecs_end. 0, or a negative errno with a text. */
int codecs_follow(struct rw_session *s);
void codecs_end(struct rw_session *s);

/* trace.c */

/* Submits operations, and notes when each begins and ends. */
int trace_submit(struct trace *t, rw_worker *w, const struct rw_op *ops, uint32_t n, uint64_t *handles);

#endif
