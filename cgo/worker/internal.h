/* State shared by the worker's files. */
#ifndef RW_WORKER_INTERNAL_H
#define RW_WORKER_INTERNAL_H

#include "stream.h"
#include "worker.h"

#include "../kernel/kernel.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { SEND_BATCH = 32, POLL_BATCH = 64 };

/* COMMIT travels as a tensor of one chunk in every lane, without elements. */
#define COMMIT_TENSOR UINT32_MAX
#define NONE UINT32_MAX
/* The index of the control record that announces a step. */
#define ANNOUNCEMENT ((1u << RW_INDEX_BITS) - 1)

enum chunk_state { CHUNK_IDLE, CHUNK_PENDING, CHUNK_IN_FLIGHT };
/* Chains of chunks, by their indices in a lane: its requested and its NACKed ones. NONE ends a chain. */
enum chain { REQUESTED, AGAIN, CHAINS };

struct chunk {
	uint64_t offset; /* elements */
	uint32_t tensor, part, elems;
	uint16_t slot, staging;
	uint32_t next[CHAINS];
	uint8_t state;         /* enum chunk_state */
	uint8_t requested : 1, /* the aggregator requested this chunk before others */
		chained : 1,   /* in the lane's chain of requested chunks */
		in_again : 1,  /* in the lane's chain of chunks that were NACKed */
		kept : 1;      /* it was NACKed, and goes out again as it was encoded */
	uint32_t length;       /* of its payload, if that was encoded */
};

/* A control record. chunk.TensorRecord has the same layout. */
struct record {
	float hyper[RW_HYPERS];
	uint64_t dst;
	uint32_t rkey, flags, step, sum, reserved[2];
};
enum {
	RECORD_SKIP = 1,
	RECORD_HAS_DST = 2,
	RECORD_PAST_CACHE = 4,
	RECORD_PULL = 8,
	RECORD_SKIP_NON_FINITE = 16,
	RECORD_FLUSH = 32
};
/* Places in hyper. */
enum { RECORD_LR = 0, RECORD_SCALE = 2, RECORD_EXTRA = 7 };

/* A message of one record. */
struct control {
	uint32_t name; /* of a tensor's part, or ANNOUNCEMENT */
	uint16_t slot, staging;
};

/* A part is the run of chunks of one tensor in one lane. */
struct part {
	uint32_t tensor, lane;
	uint32_t first, count;
	uint32_t cursor;      /* next of its chunks to send */
	uint32_t name;        /* index in control records, the "lane's tensor index" */
	uint32_t heap_at;     /* place in the lane's heap, or NONE */
	uint8_t record_dirty; /* its control record must be sent */
};

/* Registered memory: the caller's, or registered on the fly (any_memory). */
struct region {
	struct region *next;
	struct rwf_mr mrs[RW_MAX_NICS]; /* by NIC; the first has no length if the region is unused */
	uint8_t own;                    /* registered on the fly, for one end of a tensor alone */
};

/* The memory that a tensor used last, as source or destination. */
struct used {
	const void *memory;
	struct region *own; /* registered on the fly, or NULL */
	uint8_t collapsed;  /* into huge pages, as far as possible */
};
enum { USED_SRC, USED_DST, USED_ENDS };

/* How a tensor's gradients are encoded. */
struct coding {
	struct rw_codec up, next, later; /* of the present gradient, the next one, and from another one on */
	uint32_t from;                   /* the number of that one */
	float *residual;                 /* what is still to be sent */
	char *kept;                      /* payloads of chunks that were NACKed, each where its elements would be */
	float rate, factor;              /* lr * scale of the last gradient; the residual's factor in the present one */
	uint8_t flush;                   /* the next gradient must take the residual along, uncompressed */
	uint8_t raw;                     /* the present one does */
	double lost;                     /* of the last gradient, in squares */
};

/* A message of rows or a fetch in flight, by its staging buffer. */
struct sent {
	uint32_t first, count; /* among the places of the operation's rows */
	uint16_t next;         /* younger one of its flow and class */
};
enum { FLOW_ROWS, FLOW_FETCHES, FLOW_CLASSES };

/* A flow is the present operation's stream of rows in one lane. */
struct flow {
	uint32_t rows;           /* of the tensor in the lane */
	uint32_t first, at, end; /* its part of the operation's rows; at is the next to send */
	uint32_t sent, reached;  /* ends of the lane rows that sent gradients and results cover */
	uint32_t in_flight[FLOW_CLASSES];
	uint16_t oldest[FLOW_CLASSES], newest[FLOW_CLASSES];
};

/* The part of a chunk among its tensor's, and the lane row of its first row. */
struct home {
	uint32_t part, row;
};

/* A row of an operation: its place in the caller's memory, and its lane row. */
struct place {
	uint32_t at, row;
};

/* The rows of a sparse tensor, and of its present operation on rows. What it points to lies behind it. */
struct rows {
	int64_t *union_ids; /* the caller's, as nunion */
	uint64_t *nunion;
	uint32_t count, per_chunk;
	uint64_t inverse;    /* 2^63 / per_chunk, rounded up: a multiplication instead of a division */
	uint32_t *bits;      /* the rows that had results */
	struct flow *flows;  /* by part */
	struct home *homes;  /* by chunk */
	struct place *order; /* the operation's rows, those in one lane side by side */
	uint8_t kind;
};

enum flush { FLUSH_PRESENT = 1, FLUSH_NEXT = 2 };

struct tensor {
	uint64_t elems;
	const char *src;
	char *dst;
	uint64_t bound_dst; /* the destination that the aggregator knows, or 0 */
	const struct region *bound_region;
	uint32_t bound_rkey;             /* of bound_region on the first NIC; it changes when the region is registered anew */
	const struct region *src_region; /* region of src, if it can be sent from directly */
	struct used used[USED_ENDS];
	struct coding *coding; /* NULL until the tensor has a codec */
	float *reference;      /* which compressed answers change, or NULL */
	struct rows *rows;     /* of a sparse tensor, or NULL */
	uint32_t generation;
	uint32_t gradients; /* begun so far */
	uint32_t remaining; /* chunks without an answer */
	int32_t priority;
	int status; /* of the last finished operation */
	uint64_t seq;
	rw_done_fn done; /* if finished, it is called before the tensor's next operation begins */
	void *done_arg;
	uint32_t next_finished;
	float hyper[8];
	uint32_t first_part, nparts; /* among all parts */
	uint32_t width;              /* elements in a row, or 0 */
	uint8_t wire_type, memory_type;
	uint8_t kind, active, epoch;
	uint8_t coded;      /* the operation sends an encoded gradient */
	uint8_t by_rows;    /* the operation is on rows, and not on chunks */
	uint8_t flush;      /* enum flush: which gradients' records flush what aggregators keep */
	uint8_t recorded;   /* its control record was sent, or must be */
	uint8_t past_cache; /* in the last control record: its results go past the cache */
};

struct lane {
	rwf_qp *qp; /* NULL if detached */
	uint32_t nic;
	uint64_t slot_addr;
	uint32_t slot_rkey;
	char *staging;
	struct chunk *chunks;
	uint32_t nchunks;
	uint32_t *names, nnames; /* the tensors that have chunks here, by their index in control records */
	uint32_t in_flight;
	/* The free slots, oldest first: a ring of `window` entries (worker.h explains the order). */
	uint16_t *slots;
	uint32_t slot_head, slot_count;
	uint16_t *staging_free; /* by reference: last in, first out, so that few buffers stay hot */
	uint32_t staging_count;
	uint32_t *heap; /* parts with chunks to send, best first */
	uint32_t heap_len;
	uint32_t again_head, again_tail; /* chunks that the aggregator NACKed */
	uint32_t request_head;           /* first requested chunk that can be sent now */
	uint32_t last_request;           /* the chunk that was requested last, which goes before the others, or NONE */
	uint32_t requests_open;          /* requested chunks that were not sent, whether they can be or not */
	struct stream stream;
	uint32_t consumed, receives; /* receives to post again; posted and not completed */
	uint64_t progress;           /* done and received when the device last blamed this side for a break */
	uint32_t fruitless;          /* number of such breaks since then */
	struct control commit;
	uint8_t commit_state; /* enum chunk_state */
	uint8_t announce;     /* a step must be announced; in lane 0 only */
	/* The control records in flight, oldest first: a ring of `window` entries, because they are answered in this order. */
	struct control *records;
	uint32_t record_head, record_count;
	uint32_t *flows, nflows; /* the parts whose flows are not at their end */
	struct sent *sent;       /* by staging buffer */
	uint32_t fetches;        /* in flight */
	uint32_t firsts;         /* first messages of flows' classes, in flight or not */
	uint32_t extra;          /* messages of flows beyond these */
	uint32_t kept;           /* slots and buffers that other messages leave for the first ones */
};

struct rw_worker {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct rw_worker_config cfg;
	struct lane *lanes;
	struct tensor *tensors;
	struct part *parts; /* those of a tensor side by side */
	uint32_t ntensors, nparts, nsparse;
	uint64_t model_bytes; /* of all tensors in f32 */
	struct tensor commit;
	struct record commit_record; /* of the commit under way, then its answer */
	uint32_t step;               /* step of the next push, or of the present one */
	uint8_t announced;
	struct nic {
		struct rw_worker_nic cfg;
		uint32_t lanes; /* number of lanes on the NIC; its queue is polled while there are any */
		uint8_t lost;   /* its queue is lost, and no lane can use it */
	} nics[RW_MAX_NICS];
	struct region *regions;
	const struct region *staging; /* of the lanes' staging buffers */
	uint32_t active;              /* operations in flight */
	uint64_t seq;
	int driving;      /* a thread owns the queues now */
	int claims;       /* threads that want to drive, and go first */
	int waiting;      /* threads that wait for the driving one */
	int entering;     /* threads that wait for the lock; atomic */
	int stopping;     /* the serving thread must end */
	int news;         /* an operation is done, and waiting threads were not woken */
	rwf_cq *sleeping; /* the driving thread sleeps on it */
	int failure;      /* enum rw_error, -ENOMEM or 0 */
	char failure_text[256];
	uint32_t finished_head, finished_tail; /* the chain of tensors whose callbacks must be called, or NONE */
	int fail_qps; /* a thread that did not own the queues failed the worker, and the next driver fails the queue pairs */
	struct rw_stats stats;
};

/*
 * A send's work request id has the tag, its lane in the upper half, and the number of messages that it completes in the lower. A
 * receive's is its lane.
 */
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

static inline uint64_t staging_bytes(const struct rw_worker *w)
{
	return (uint64_t)w->cfg.nlanes * w->cfg.nstaging * w->cfg.chunk_bytes;
}

/* Reports whether results go past the cache. A model grows, and the whole of it counts. */
static inline uint8_t past_cache(const struct rw_worker *w)
{
	return w->cfg.cache_bytes && w->model_bytes > w->cfg.cache_bytes;
}

static inline char *staging_at(const struct rw_worker *w, const struct lane *l, uint32_t index)
{
	return l->staging + (size_t)index * w->cfg.chunk_bytes;
}

static inline struct tensor *tensor_of(struct rw_worker *w, uint32_t index)
{
	return index == COMMIT_TENSOR ? &w->commit : &w->tensors[index];
}

/* coding.c; under the lock. */
/* Reports whether the tensor's next gradient is encoded, and prepares it. */
uint8_t coding_begin(struct tensor *t);
/* Writes a chunk's payload, and remembers its length. A chunk is encoded once, because that changes the residual. */
void coding_send(struct rw_worker *w, struct chunk *c, char *payload);
/* Marks the payload of a chunk after which the lane can send more at once. */
void coding_more(const struct chunk *c, char *payload);
/* Keeps the payload of a chunk that was NACKed. */
void coding_keep(struct rw_worker *w, struct chunk *c, const char *payload);
/*
 * Writes the values of an answer to the tensor's destination. The payload is compressed if it is shorter than the values. Returns
 * NULL, or what is wrong with it.
 */
const char *coding_receive(struct rw_worker *w, const struct chunk *c, const char *payload, uint32_t length);
/* Makes the tensor's reference. */
int coding_refer(struct tensor *t);
void coding_free(struct tensor *t);

/* pages.c; under the lock. Records that an operation uses memory at this end. */
void pages_used(struct rw_worker *w, uint32_t tensor, int end, const void *memory);

/* queue.c; all under the lock, as lane.c. */
void queue_part(struct rw_worker *w, uint32_t part); /* all of its chunks must be sent */
/* Returns the next chunk to send, or NONE if no chunk or no slot is free. */
uint32_t queue_next(struct rw_worker *w, struct lane *l);
void queue_sent(struct rw_worker *w, struct lane *l, uint32_t index);
void queue_request(struct lane *l, uint32_t index); /* the chunk goes before others */
void queue_again(struct lane *l, uint32_t index);   /* the chunk goes behind all others */

/* Reports whether part a goes before part b: by priority, then in the order of submission. */
int queue_before(const struct rw_worker *w, uint32_t a, uint32_t b);

/* rows.c; all under the lock. */
/* Makes room for a sparse tensor's streams in so many lanes. Once its chunks are there, rows_place finds its rows. */
int rows_alloc(struct rw_worker *w, struct tensor *t, uint32_t lanes);
void rows_place(struct rw_worker *w, struct tensor *t);
/* Checks the operation's ids, and deals them to the lanes. */
int rows_begin(struct tensor *t, const struct rw_op *op);
/* Reports whether a stream of the lane has rows left to send, or to ask for. */
int rows_left(struct rw_worker *w, const struct lane *l);
void rows_queue(struct rw_worker *w, struct tensor *t); /* all of its flows must be sent */
/* Returns the part whose flow sends next, and sets the class of its message; NONE if none can send. */
uint32_t rows_next(struct rw_worker *w, const struct lane *l, int *class);
/* Writes the message into a staging buffer. Returns its length. */
uint32_t rows_put(struct rw_worker *w, struct lane *l, uint32_t part, int class, uint16_t staging);
/* Takes an answer to the flow of a chunk's part. Returns the staging buffer of its message, or the failure. */
int rows_receive(struct rw_worker *w, struct lane *l, const struct chunk *c, const struct rwf_wc *wc);

/* lane.c; all under the lock, by the driving thread. */
int lane_init(struct rw_worker *w, uint32_t index);
void lane_free(struct lane *l);
int lane_send(struct rw_worker *w, struct lane *l);
int lane_receive(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc);
/* Returns the tensor's control record, with the keys of the lane's NIC. */
struct record lane_record(const struct rw_worker *w, const struct lane *l, uint32_t tensor);
/* Records a completion in error. Returns 0 if the lane can be resumed. */
int lane_lost(struct rw_worker *w, struct lane *l, const struct rwf_wc *wc);
/* Posts the messages that were not posted. A broken lane's messages wait. */
int lane_flush(struct rw_worker *w, struct lane *l);

/* region.c */
void region_forget(struct rw_worker *w, struct region *r);
/* Returns the region of a buffer, registering it if that costs nothing, or NULL if the buffer must be copied. */
const struct region *region_reach(struct rw_worker *w, const void *p, uint64_t bytes, struct region **cached);

/* Grows an array. array points to the pointer to it. */
static inline int grow(void *array, size_t count, size_t size)
{
	void **p = array, *bigger = realloc(*p, count * size);

	if (!bigger)
		return -ENOMEM;
	*p = bigger;
	return 0;
}

/* Takes the lock, even while a thread drives. */
static inline void enter(struct rw_worker *w)
{
	__atomic_add_fetch(&w->entering, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&w->lock);
	__atomic_sub_fetch(&w->entering, 1, __ATOMIC_RELAXED);
}

/* done.c */
int worker_fail(struct rw_worker *w, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void tensor_done(struct rw_worker *w, uint32_t index, int status);
/* Returns 1 if finished, with its status in status; 0 if in flight; negative if no such operation exists. */
int op_finished(struct rw_worker *w, uint64_t handle, int *status);
/* Calls the callbacks of operations that are done, without the lock meanwhile. */
void run_callbacks(struct rw_worker *w);

/* drive.c */
/*
 * Runs one round: completions, receives, sends. By the driving thread, under the lock. Returns the number of completions or the
 * failure.
 */
int drive(struct rw_worker *w);
/* Sends new work: by this thread if no thread drives, or by waking the driving one. */
void kick(struct rw_worker *w);

/* record.c */
void record_put(struct record *out, struct record r);     /* with its checksum */
void mark_records(struct rw_worker *w, struct tensor *t); /* they must be sent again */
void set_hyper(struct rw_worker *w, struct tensor *t, const float hyper[RW_HYPERS]);

#endif
