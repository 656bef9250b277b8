/*
 * The C interface of librackweave: the data path of a training worker. It sends gradients to a RackWeave aggregator and takes
 * sums or updated parameters back, over shared memory, TCP or RDMA.
 *
 * The library does not speak to the aggregator's control plane (service/api/job.proto, gRPC or HTTP+JSON). Whoever uses it
 * makes those calls and hands over what they carry:
 *
 *	Join      -> rw_open
 *	Connect   <- rw_endpoint;  its answer -> rw_connect
 *	Register  -> rw_add, with the lanes of the chunks that the answer lists
 *
 * A program that "rackweave run" started makes no calls at all: it uses rw_join and rw_register instead.
 *
 * Every call returns 0 or a count on success and a negative number on failure: an errno or an enum rw_error. rw_error() then
 * has the text, per thread. Calls may come from any thread. Structs begin with their size, so that they can grow; set it to
 * sizeof of the struct and what is not set to zero.
 *
 * In a forked child every call on a session returns RW_EFORKED and touches nothing; the parent goes on undisturbed. No call
 * changes signal handlers. The library's threads block all signals.
 */
#ifndef RACKWEAVE_H
#define RACKWEAVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_API __attribute__((visibility("default")))

/* The upper half changes when something is taken away, the lower when something is added. */
#define RW_ABI_VERSION 0x00030001u
RW_API uint32_t rw_abi_version(void);

/* Failures beside negative errnos. */
enum rw_error {
	RW_EFORKED = -1001,    /* this process is a forked child of the one that opened the session */
	RW_EABORTED = -1002,   /* the job failed: rw_failure says why */
	RW_ETRANSPORT = -1003, /* a connection to the aggregator failed */
	RW_EPROTOCOL = -1004,  /* the aggregator answered something that was not asked */
};

/* The text of the calling thread's last failure. */
RW_API const char *rw_error(void);

typedef struct rw_session rw_session;

enum { RW_MAX_LANES = 256, RW_MIN_WINDOW = 2, RW_MAX_WINDOW = 4096, RW_MAX_NICS = 8, RW_ENDPOINT_BYTES = 256, RW_HYPERS = 8 };

/* What the answers to pushpulls of f32 hold. A whole answer of any kind has the values as they are. */
enum rw_answers {
	RW_ANSWERS_WHOLE = 0, /* not compressed */
	RW_ANSWERS_SUMS = 1,  /* compressed sums */
	RW_ANSWERS_CHANGES =
		2, /* compressed changes of the parameters since the last answer: the library keeps 4 bytes an element */
};

/* What Join answered, and how to run. */
struct rw_config {
	uint32_t size;
	uint32_t rank;
	const char *provider;       /* shm, tcp or ibv */
	const char *const *devices; /* of the provider; if NULL, its first, of ibv all that have a link */
	const char *options;        /* of the provider, "key=value,…", or NULL */
	const uint32_t *lane_nics;  /* the aggregator's NIC of each lane; of several aggregators the first's lanes come first */
	uint32_t ndevices, nlanes;
	uint32_t chunk_bytes, window, send_depth, recv_depth;
	uint32_t local_workers; /* on this host; if 0, 1 */
	uint32_t spin;          /* empty polls before a wait sleeps */
	uint64_t cache_bytes;   /* of the last-level cache; if 0, the library looks */
	uint8_t by_reference;
	uint8_t live_hyper; /* a tensor starts with record as its hyper-parameters */
	uint8_t steps;      /* the job is in mode stream: a step's first push announces it, a commit ends it */
	uint8_t answers;    /* enum rw_answers */
	uint8_t reserved[4];
	float record[RW_HYPERS];
};

/* Opens the provider's devices and makes a queue pair for each lane. */
RW_API int rw_open(const struct rw_config *config, rw_session **session);
/* Takes everything back. No other call on the session may be under way; operations in flight are lost. */
RW_API int rw_close(rw_session *session);

/* What was opened; its size may be smaller than this struct. */
struct rw_info {
	uint32_t size;
	uint32_t rank, nlanes, nnics;
	uint32_t tensors;   /* added so far */
	uint8_t any_memory; /* ordinary memory is sent and received without a copy by this process */
	uint8_t reserved[3];
	uint32_t workers; /* of the job, after rw_join; else 0 */
	uint32_t isa;     /* of the kernels in use: 0 scalar, 1 AVX2, 2 AVX-512, 3 NEON */
	uint32_t reserved2;
	uint64_t cache_bytes; /* of the last-level cache that this process can count on: more is written past it */
};
RW_API int rw_query(rw_session *session, struct rw_info *info);

/* One end of a lane, for the other end to connect to. */
struct rw_endpoint {
	uint32_t size;
	uint32_t length; /* of bytes */
	uint8_t bytes[RW_ENDPOINT_BYTES];
	uint64_t addr;    /* this worker's: where answers go (reply_addr); the aggregator's: its slots (slot_addr) */
	uint32_t rkey;    /* of that memory */
	uint32_t staging; /* this worker's: how many buffers of a chunk lie there */
};
/* What to tell the aggregator of a lane in Connect. */
RW_API int rw_endpoint(rw_session *session, uint32_t lane, struct rw_endpoint *out);

struct rw_connect {
	uint32_t size;
	uint32_t timeout_ms;
	uint32_t ack_timeout_ms; /* how long a message that is not acknowledged is sent again */
	uint32_t reserved;
};
/* Connects all lanes to the ends that Connect answered, one for each lane. rw_abort ends the wait. */
RW_API int rw_connect(rw_session *session, const struct rw_endpoint *peers, uint32_t npeers, const struct rw_connect *how);

enum rw_type { RW_F32 = 1, RW_BF16 = 2, RW_F16 = 3 };

struct rw_tensor {
	uint32_t size;
	uint8_t wire_type, memory_type; /* enum rw_type */
	uint8_t reserved[2];
	uint64_t elems;
	uint32_t width; /* elements in a row of a sparse tensor, or 0 */
	uint32_t reserved2;
};
/*
 * Adds the tensors that Register declared, numbered from the last one on. chunk_lanes has the lane of each of their chunks, in
 * order: a tensor is cut into chunks of chunk_bytes on the wire, or of the whole rows that fit into that; the last one is shorter.
 */
RW_API int rw_add(rw_session *session, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *chunk_lanes,
		  uint64_t nchunks);

/* How gradients are compressed: a codec as Join answered it. */
struct rw_codec {
	uint32_t size;
	uint8_t id;         /* 0: not at all */
	uint8_t stochastic; /* rounds up or down by chance, so that the mean is unbiased */
	uint8_t as_is;      /* what is left is added as it is, also if the learning rate or the scale changed since */
	uint8_t reserved;
	double param; /* of the codecs that have one: the threshold, or the share */
};
/*
 * Compresses a tensor's gradients from its next one on, by another codec than before, or no longer. What a codec leaves out is
 * kept, 4 bytes for each element, and added to the next gradient. So the first gradient without a codec sends all that is left.
 * Payloads that the codec would not shorten, or cannot hold, travel as they are, and so do all rows of sparse tensors. Other
 * tensors must have the wire type RW_F32.
 */
RW_API int rw_compress(rw_session *session, uint32_t tensor, const struct rw_codec *codec);
/* As rw_compress, from the tensor's gradient of a number on, counted from 0. Returns -EAGAIN if that one has begun. */
RW_API int rw_compress_from(rw_session *session, uint32_t tensor, const struct rw_codec *codec, uint32_t from);
/*
 * Makes every tensor's next gradient take along, uncompressed, what its codec has left, and so its way on to other racks and its
 * answer, if all workers call it: before the last step ahead of a checkpoint, or of leaving, so that nothing is lost.
 */
RW_API int rw_flush(rw_session *session);
/*
 * Copies what a tensor's codecs have left to values, f32[elems], or from there if set is not 0: another session can go on with it.
 * Returns -ENOENT if the tensor never had a codec, and -EBUSY while it is exchanged.
 */
RW_API int rw_residual(rw_session *session, uint32_t tensor, float *values, int set);

enum rw_kind {
	RW_PUSH = 0,      /* sends a gradient */
	RW_PUSHPULL = 1,  /* sends a gradient; gets the sum, or the updated parameters, as the job's mode says */
	RW_PULL = 2,      /* gets the parameters */
	RW_BROADCAST = 3, /* gets rank 0's values, which become the parameters */
};

/*
 * Called once for each operation, with 0 or its failure. It runs on a thread that makes progress, without locks held; it must
 * not block. It may submit operations.
 */
typedef void (*rw_done_fn)(void *arg, uint64_t handle, int status);

struct rw_op {
	uint32_t size;
	uint32_t tensor;
	const void *src; /* memory_type[elems]; not read for a pull, nor for a broadcast off rank 0 */
	void *dst;       /* memory_type[elems], may be src; not written by a push */
	const float
		*hyper; /* RW_HYPERS values that hold from this push on, in the places of a control record; if NULL, as they are */
	int32_t priority; /* higher goes first */
	uint8_t kind;     /* enum rw_kind */
	uint8_t reserved[3];
	rw_done_fn done; /* may be NULL */
	void *done_arg;
	/*
	 * If ids is not NULL, the operation is on these rows of a sparse tensor: nids numbers from 0, at most as many as the tensor has
	 * rows. Those of a push or pushpull ascend strictly; those of a pull come in any order and may repeat. src of a push or
	 * pushpull, and dst of a pull, hold these rows alone, memory_type[nids * width], in the order of ids. dst of a pushpull is the
	 * whole tensor, and only the rows that any worker sent are written; it may be src if that has all rows, and otherwise they have
	 * no memory in common. If ids is NULL, nids must be 0.
	 */
	const int64_t *ids;
	uint64_t nids;      /* a worker that touches no rows pushes 0 of them, with ids not NULL, because the others wait for it */
	int64_t *union_ids; /* of a pushpull, if not NULL: gets the rows that were written, ascending; has room for all rows */
	uint64_t *nunion;   /* gets their number, if not NULL */
};
/*
 * Starts n operations, at most one per tensor at a time (-EBUSY), and returns how many it started, or the error if the first
 * was not. The buffers are the library's until the operation is done. Never blocks for the aggregator. handles has n entries.
 */
RW_API int rw_submit(rw_session *session, const struct rw_op *ops, uint32_t n, uint64_t *handles);

/*
 * Sorts n rows by id, and sums rows of the same id in the order in which they are given, because a push takes each row once. Each
 * sum is rounded to the type. ids and rows, type[n * width], are changed in place. Returns the number of ids that are left, in
 * front; -EINVAL for an id below 0 or a bad argument; or -ENOMEM.
 */
RW_API int64_t rw_sum_rows(int64_t *ids, uint64_t n, void *rows, uint32_t width, int type);

/* Returns 1 if the operation is done, 0 if it is not yet, and a negative errno if it failed. */
RW_API int rw_test(rw_session *session, uint64_t handle);
/*
 * Waits until one of the operations is done and returns its place among the handles; -ETIMEDOUT after timeout_ms, and nothing
 * is lost: wait again. *status has 0 or the operation's failure.
 */
RW_API int rw_wait_any(rw_session *session, const uint64_t *handles, uint32_t n, uint32_t timeout_ms, int *status);
/* Waits for all of them: 0, or the first failure in their order; -ETIMEDOUT as above. */
RW_API int rw_wait_all(rw_session *session, const uint64_t *handles, uint32_t n, uint32_t timeout_ms);

/* The end of a two-phase step, the same at every worker. No other operation may be in flight. */
struct rw_step {
	uint32_t size;
	float lr, wd;
	float scale;             /* multiplies the gradients' sum */
	float clip;              /* of the global norm, if not 0 */
	uint8_t skip;            /* drop the gradients, leave the parameters as they are */
	uint8_t skip_non_finite; /* do so if the norm is not finite */
	uint8_t reserved[2];
};
RW_API int rw_commit(rw_session *session, const struct rw_step *step, uint64_t *handle);
/* The outcome of the last commit, once it is done: the norm of the scaled gradient, and the scale with clipping included. */
RW_API int rw_committed(rw_session *session, float *norm, float *scale);

/*
 * The end of this worker's step, in mode stream. No other operation may be in flight. It is done when the job's policy lets the
 * worker begin its next step.
 */
RW_API int rw_end_step(rw_session *session, uint64_t *handle);
/* What the end of the last step answered, once it is done: the step that begins, and whether to pull the parameters before. */
RW_API int rw_step_ended(rw_session *session, uint32_t *step, int *pull);

/* Fails everything in flight and to come with RW_EABORTED and this text. */
RW_API void rw_abort(rw_session *session, const char *text);
/* 0, or the session's failure and its text in buf. */
RW_API int rw_failure(rw_session *session, char *buf, uint32_t cap);

struct rw_stats {
	uint32_t size, reserved;
	uint64_t sent_bytes, received_bytes, sent_chunks, received_chunks;
	uint64_t copied_bytes; /* of those: moved by this process between the caller's memory and the transport's */
	uint64_t doorbells, nacks, sleeps;
	uint64_t sent_raw_bytes, received_raw_bytes; /* what sent_bytes and received_bytes would be without codecs */
	double residual;                             /* sum of squares of what the codecs have left for the next gradients */
};
RW_API int rw_stats(rw_session *session, struct rw_stats *out);

/* Notes from now on when operations begin and end, of the first cap that are submitted. */
RW_API int rw_trace(rw_session *session, uint32_t cap);
/* An operation as it was noted: nanoseconds of CLOCK_MONOTONIC, ended 0 while it is in flight, both 0 if it did not start. */
struct rw_traced {
	uint64_t began, ended;
	uint32_t tensor, kind; /* enum rw_kind */
};
/* Reads up to n, from the given one on, oldest first; returns how many there are. */
RW_API int rw_traced(rw_session *session, uint32_t first, struct rw_traced *out, uint32_t n);

/*
 * A program that "rackweave run" started finds there what to join: these calls do in one what rw_open, rw_connect and rw_add do
 * in steps. A lane whose connection fails ends the session.
 */

struct rw_hyper {
	const char *name; /* lr, wd, scale, clip, momentum, dampening, beta1, beta2, eps, alpha, lambda1, beta */
	double value;
};

/* What the job is; the same at every worker. */
struct rw_job {
	uint32_t size;
	uint32_t timeout_ms;          /* of every wait for other workers; if 0, the aggregator's default */
	const char *mode;             /* NULL: stream with a policy, eager with an optimizer, else aggregate */
	const char *optimizer;        /* an update rule, such as sgd_torch, or NULL */
	const char *provider;         /* NULL: the fastest that all workers can use */
	const struct rw_hyper *hyper; /* overrides the rule's defaults */
	uint32_t nhyper, chunk_bytes; /* 0: the aggregator's default */
	const char *policy;           /* who waits for whom in mode stream, such as "ssp:s=3"; if NULL, asp */
	const char *compress;         /* codecs of gradients and answers, such as "sign/int8"; if NULL, as rackweave run says */
};
/* Makes this process a worker of the job, once all workers have called it. rw_close leaves the job. */
RW_API int rw_join(const struct rw_job *job, rw_session **session);

/* Which rows a gradient has. A row is one index of the first dimension. */
enum rw_rows {
	RW_DENSE = 0,           /* all */
	RW_SPARSE = 1,          /* some; the others stay as they are */
	RW_SPARSE_STANDARD = 2, /* some; the others are updated with a gradient of 0 */
};

struct rw_parameter {
	uint32_t size;
	uint8_t wire_type, memory_type; /* enum rw_type */
	uint8_t rows;                   /* enum rw_rows */
	uint8_t reserved;
	const char *name;
	const uint64_t *shape;
	uint32_t ndim, reserved2;
	double lr_mult, wd_mult; /* multiply the job's learning rate and weight decay */
};
/* Declares the next tensors, the same in every worker and in the same order, and waits until all workers have. */
RW_API int rw_register(rw_session *session, const struct rw_parameter *parameters, uint32_t n);
/* Waits until all workers have called it with the same name. */
RW_API int rw_barrier(rw_session *session, const char *name);
/* Lets another policy decide who waits for whom, in mode stream. */
RW_API int rw_set_policy(rw_session *session, const char *policy);
/* Tells the policy the validation loss after an epoch; one worker reports each epoch's. */
RW_API int rw_report_loss(rw_session *session, double loss);

/*
 * Arenas: memory that every session sends from and receives into without a copy. It is shared with the aggregator on this host
 * by descriptor, belongs to the process and not to a session, and is never unmapped. In a forked child it is private: the
 * child's writes stay its own.
 */

/* Allocates bytes, aligned to 64; the content is undefined. -ENOMEM if there is not so much, RW_EFORKED in a forked child. */
RW_API int rw_alloc(size_t bytes, void **out);
/* Gives memory of rw_alloc back, for the next rw_alloc. In a forked child it does nothing. */
RW_API int rw_free(void *p);
/* Whether [p, p+bytes) lies in one piece of arena memory, allocated or adopted. */
RW_API int rw_in_arena(const void *p, size_t bytes);
/*
 * Turns the block of ordinary memory at p, which malloc or posix_memalign gave, into arena memory at the same address, its
 * content kept. Nobody may write to it meanwhile, and whoever owns it must not free it before rw_disown. Refuses what is not
 * a block that glibc mapped for itself, because others may live in its pages: -ENOTSUP.
 */
RW_API int rw_adopt(void *p);
/* The block at p may be freed again. No operation may use it. */
RW_API int rw_disown(void *p);
struct rw_arenas {
	uint32_t size, blocks; /* allocated */
	uint64_t mapped_bytes, allocated_bytes, adopted_bytes;
};
RW_API int rw_arenas(struct rw_arenas *out);

#ifdef __cplusplus
}
#endif

#endif
