/* State shared by the worker's files. */
#ifndef RW_WORKER_INTERNAL_H
#define RW_WORKER_INTERNAL_H

#include "stream.h"
#include "worker.h"

#include "../kernel/kernel.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

enum { SEND_BATCH = 32, POLL_BATCH = 64 };

/* COMMIT travels as a tensor of one chunk in every lane, without elements. */
#define COMMIT_TENSOR UINT32_MAX
#define NONE UINT32_MAX
/* The index of the control record that announces a step. */
#define ANNOUNCEMENT ((1u << RW_INDEX_BITS) - 1)

enum chunk_state { CHUNK_IDLE, CHUNK_PENDING, CHUNK_IN_FLIGHT };

struct chunk {
	uint64_t offset; /* elements */
	uint32_t part;   /* of its home, index into that lane's parts */
	uint32_t elems;
	uint16_t slot, staging;
	uint32_t next_request; /* chain of requested chunks that can be sent */
	uint32_t next_guest;   /* chain of a part's guests */
	uint8_t state;         /* enum chunk_state */
	uint8_t requested : 1, /* the aggregator asked for this chunk before others */
		chained : 1,   /* stands in the lane's chain of requested chunks */
		in_again : 1,  /* stands in the lane's ring of chunks that were NACKed */
		away : 1;      /* is another lane's guest */
	uint8_t to;            /* 1 + the lane it belongs to once it is answered; 0: it stays */
};

/* A part is what one tensor has in one lane: a run of chunks. Its index in the lane is the "lane's tensor index". */
struct part {
	uint32_t tensor, first, count;
	uint32_t cursor;               /* next of its chunks to send */
	uint32_t name;                 /* index in control records */
	uint32_t guests, guest_cursor; /* chunks of the tensor that have come from other lanes, by index; NONE: no other */
	uint16_t record_slot, record_staging;
	uint8_t record_dirty, record_in_flight;
	uint32_t heap_at; /* place in the lane's heap; NONE: not there */
};

/* Registered memory, by NIC. */
struct region {
	struct region *next;
	uint64_t addr, length; /* 0: none */
	uint32_t lkey[RW_MAX_NICS], rkey[RW_MAX_NICS];
};

/* Memory that served a tensor last. */
struct used {
	const void *memory;
	uint8_t collapsed; /* into huge pages, as far as that goes */
};
enum { USED_SRC, USED_DST, USED_ENDS };

struct tensor {
	uint64_t elems;
	const char *src;
	char *dst;
	uint64_t bound_dst; /* what the aggregator knows as destination; 0: none */
	const struct region *bound_region;
	uint32_t bound_rkey;             /* of it on the first NIC: it is registered anew when that changes */
	const struct region *src_region; /* of src where it can be sent from directly */
	struct used used[USED_ENDS];
	struct region *auto_src, *auto_dst; /* registered on the fly (any_memory); NULL: not yet */
	uint32_t generation;
	uint32_t remaining; /* chunks not answered yet */
	int32_t priority;
	int status; /* of the last finished operation */
	uint64_t seq;
	rw_done_fn done;
	void *done_arg;
	float hyper[8];
	uint32_t hyper_flags;
	uint32_t first_part; /* into worker.part_index: its part in each lane, nlanes entries */
	uint8_t wire_type, memory_type;
	uint8_t kind, active, epoch;
	uint8_t direct_src, direct_dst;
	uint8_t recorded;  /* its control record has been sent, or is to be */
	uint8_t streaming; /* as the aggregator knows: its results go past the cache */
};

struct lane {
	rwf_qp *qp; /* NULL: detached */
	uint32_t nic;
	uint64_t slot_addr;
	uint32_t slot_rkey;
	char *staging;
	struct chunk *chunks;
	struct part *parts;
	uint32_t nchunks, nparts, nguests;
	uint32_t *homes, nhomes; /* the parts that were added, by their index in control records */
	uint32_t in_flight;
	/* Free slots, oldest first: a ring of `window` entries (see worker.h on why first in, first out). */
	uint16_t *slots;
	uint32_t slot_head, slot_count;
	uint16_t *staging_free; /* by reference: last in, first out, so that few buffers stay hot */
	uint32_t staging_count;
	uint32_t *heap; /* parts with chunks to send, best first */
	uint32_t heap_len;
	uint32_t *again; /* chunks the aggregator NACKed, a ring */
	uint32_t again_head, again_count, again_cap;
	uint32_t request_head;  /* requested chunks that can be sent now, chained; NONE: none */
	uint32_t last_request;  /* the chunk that was requested last goes before the others; NONE: none yet */
	uint32_t requests_open; /* requested chunks not sent yet, whether they can be or not */
	struct stream stream;
	uint32_t consumed, receives; /* receives to post again; posted and not completed */
	uint64_t progress;           /* done and received when the device last blamed this side for a break; */
	uint32_t fruitless;          /* how often it did since */
	uint16_t commit_slot, commit_staging;
	uint8_t commit_state; /* enum chunk_state */
	uint16_t announce_slot, announce_staging;
	uint8_t announce_state; /* enum chunk_state; of lane 0 */
};

struct finished {
	rw_done_fn done;
	void *arg;
	uint64_t handle;
	int status;
};

struct rw_worker {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pid_t owner;
	struct rw_worker_config cfg;
	struct lane *lanes;
	struct tensor *tensors;
	uint32_t *part_index;
	uint32_t ntensors;
	uint64_t model_bytes; /* of all tensors in f32 */
	struct tensor commit;
	unsigned char *commit_record;
	uint32_t step; /* that the next push belongs to, or the present one */
	uint8_t announced;
	struct nic {
		struct rw_worker_nic cfg;
		uint32_t lanes; /* on it: its queue is polled while there are any */
		uint8_t lost;   /* its queue is: no lane can be on it any more */
	} nics[RW_MAX_NICS];
	struct region *regions;
	uint32_t active; /* operations in flight */
	uint64_t seq;
	int driving;      /* a thread owns the queues now */
	int claims;       /* threads that want to, and go first */
	int waiting;      /* threads that wait for the one that drives */
	int entering;     /* threads that wait for the lock; atomic */
	int stopping;     /* the serving thread is to end */
	int news;         /* an operation is done, and those who wait have not been told */
	rwf_cq *sleeping; /* the driving thread sleeps on it */
	int failure;      /* enum rw_error or -ETIMEDOUT; 0: none */
	char failure_text[256];
	struct finished *finished; /* callbacks to run: a ring of ntensors + 1, as each tensor has one operation at a time */
	uint32_t finished_head, finished_count, finished_cap;
	int fail_qps; /* a thread that did not own the queues failed the worker: the next driver fails the queue pairs */
	struct rw_stats stats;
};

/* Work request ids: a send's has the tag, its lane above, and how many it completes below; a receive's is its lane. */
#define SEND_TAG (UINT64_C(1) << 63)

static inline uint32_t imm_pack(uint32_t op, uint32_t epoch, uint32_t index)
{
	return op << (RW_EPOCH_BITS + RW_INDEX_BITS) | epoch << RW_INDEX_BITS | index;
}

static inline uint32_t imm_op(uint32_t imm)
{
	return imm >> (RW_EPOCH_BITS + RW_INDEX_BITS);
}

static inline uint32_t imm_epoch(uint32_t imm)
{
	return imm >> RW_INDEX_BITS & ((1u << RW_EPOCH_BITS) - 1);
}

static inline uint32_t imm_index(uint32_t imm)
{
	return imm & ((1u << RW_INDEX_BITS) - 1);
}

static inline uint32_t type_size(uint8_t type)
{
	return type == RWK_F32 ? 4 : 2;
}

/* Whether results go past the cache: a model grows, and the whole of it counts. */
static inline uint8_t past_cache(const struct rw_worker *w)
{
	return w->cfg.cache_bytes && w->model_bytes > w->cfg.cache_bytes;
}

static inline int forked(const struct rw_worker *w)
{
	return w->owner != getpid();
}

/* A chunk of another lane, by its index as a guest. NULL: there is none. */
static inline struct chunk *guest_at(struct rw_worker *w, uint32_t index)
{
	uint32_t home = index & ~(uint32_t)RW_GUEST_BIT;
	struct lane *l = &w->lanes[home % w->cfg.nlanes];

	if (!(index & RW_GUEST_BIT) || home / w->cfg.nlanes >= l->nchunks)
		return NULL;
	return &l->chunks[home / w->cfg.nlanes];
}

static inline struct tensor *tensor_of(struct rw_worker *w, uint32_t index)
{
	return index == COMMIT_TENSOR ? &w->commit : &w->tensors[index];
}

static inline struct part *part_of(struct rw_worker *w, const struct tensor *t, uint32_t lane)
{
	uint32_t p = w->part_index[t->first_part + lane];

	return p == NONE ? NULL : &w->lanes[lane].parts[p];
}

/* A chunk of a lane, by its index there: one that was added to it, or one that was added to another. NULL: there is none. */
static inline struct chunk *chunk_at(struct rw_worker *w, struct lane *l, uint32_t index)
{
	return index < l->nchunks ? &l->chunks[index] : guest_at(w, index);
}

/* The number of its tensor. */
static inline uint32_t tensor_at(const struct rw_worker *w, const struct lane *l, uint32_t index)
{
	const struct lane *home = index < l->nchunks ? l : &w->lanes[(index & ~(uint32_t)RW_GUEST_BIT) % w->cfg.nlanes];
	const struct chunk *c =
		index < l->nchunks ? &l->chunks[index] : &home->chunks[(index & ~(uint32_t)RW_GUEST_BIT) / w->cfg.nlanes];

	return home->parts[c->part].tensor;
}

/* The part that it belongs to in the lane. */
static inline uint32_t part_at(const struct rw_worker *w, const struct lane *l, uint32_t index)
{
	if (index < l->nchunks)
		return l->chunks[index].part;
	return w->part_index[w->tensors[tensor_at(w, l, index)].first_part + (uint32_t)(l - w->lanes)];
}

/* move.c; all under the lock. */
/* The lane's part of that index in control records; NULL: there is none. */
struct part *part_named(struct rw_worker *w, struct lane *l, uint32_t name);
/* Takes note that a chunk in flight belongs to another lane once it is answered. */
int move_begin(struct rw_worker *w, struct lane *l, uint32_t index, uint32_t to);
/* Gives a chunk that is answered to its other lane. */
int move_end(struct rw_worker *w, struct lane *l, uint32_t index);

/* pages.c; under the lock. Takes note that an operation uses memory at this end. */
void pages_used(struct rw_worker *w, uint32_t tensor, int end, const void *memory);

/* queue.c; all under the lock, as lane.c. */
void queue_part(struct rw_worker *w, struct lane *l, uint32_t part); /* all of its chunks are to be sent */
/* The next chunk to send; NONE: there is none, or no slot for it. */
uint32_t queue_next(struct rw_worker *w, struct lane *l);
void queue_sent(struct rw_worker *w, struct lane *l, uint32_t index);
void queue_request(struct rw_worker *w, struct lane *l, uint32_t index); /* it goes before others */
void queue_again(struct rw_worker *w, struct lane *l, uint32_t index);   /* it goes behind all others */
int queue_reserve(struct lane *l, uint32_t n);                           /* room for so many chunks behind all others */
void queue_forget(struct rw_worker *w, struct lane *l, uint32_t index);  /* the chunk goes to another lane */

/* lane.c; all under the lock, by the driving thread. */
int lane_init(struct rw_worker *w, uint32_t index, const struct rw_worker_lane *cfg);
void lane_free(struct lane *l);
int lane_send(struct rw_worker *w, struct lane *l);
int lane_receive(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc);
/* Writes a part's control record into its staging buffer, with the keys of the NIC that the lane is on. */
void lane_record(struct rw_worker *w, struct lane *l, const struct part *p);
/* Takes note of a completion in error: 0 where the lane can be resumed. */
int lane_lost(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc);
/* Posts what is not posted; a broken lane's waits. */
int lane_flush(struct rw_worker *w, struct lane *l);

/* region.c */
/* Makes r the memory that has these keys, by NIC. */
void region_keys(const struct rw_worker *w, struct region *r, const struct rwf_mr *mrs);
void region_forget(struct rw_worker *w, struct region *r);
/* The region of a buffer, registering it if that is free; NULL: it must be copied. */
const struct region *region_reach(struct rw_worker *w, const void *p, uint64_t bytes, struct region **cached);

/* Gives an array room; array points to the pointer to it. */
static inline int grow(void *array, size_t count, size_t size)
{
	void **p = array, *bigger = realloc(*p, count * size);

	if (!bigger)
		return -ENOMEM;
	*p = bigger;
	return 0;
}

/* Takes the lock, from the thread that drives too. */
static inline void enter(struct rw_worker *w)
{
	__atomic_add_fetch(&w->entering, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&w->lock);
	__atomic_sub_fetch(&w->entering, 1, __ATOMIC_RELAXED);
}

/* setup.c */
void mark_records(struct rw_worker *w, struct tensor *t); /* they must be sent again */
void set_hyper(struct rw_worker *w, struct tensor *t, const float hyper[RW_HYPERS], uint32_t flags);

/* done.c */
int worker_fail(struct rw_worker *w, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void tensor_done(struct rw_worker *w, uint32_t index, int status);
/* 1: finished, its status in *status; 0: in flight; negative: no such operation. */
int op_finished(struct rw_worker *w, uint64_t handle, int *status);
/* Calls what waits for operations that are done; without the lock meanwhile. */
void run_callbacks(struct rw_worker *w);

/* drive.c */
/* One round: what came, receives for it, what may go. By the driving thread, under the lock; returns completions or the failure. */
int drive(struct rw_worker *w);
/* Lets new work out: by this thread if nobody drives, else by waking the one that does. */
void kick(struct rw_worker *w);

/* record.c */
void record_announce(unsigned char out[RW_RECORD_BYTES], uint32_t step);
uint32_t record_step(const unsigned char record[RW_RECORD_BYTES]);
void record_encode(unsigned char out[RW_RECORD_BYTES], const float hyper[8], uint64_t dst, uint32_t rkey, uint32_t flags);
enum { RECORD_SKIP = 1, RECORD_HAS_DST = 2, RECORD_STREAMING = 4, RECORD_PULL = 8, RECORD_SKIP_NON_FINITE = 16 };

#endif
