/*
 * A worker's data path: tensors go out as chunks and come back as parameters, over any provider of the transport contract.
 *
 * There is one queue pair for each lane (a core of the aggregator with its NIC), and one completion queue for each NIC of the
 * worker's, for all lanes on it. The plan (package chunk) determines a lane's chunks, and rw_worker_add takes it. Every message to
 * the aggregator holds one slot of the lane's window until the aggregator answers it. The answer is the credit.
 *
 * Where a slot is not by reference, message k of a queue pair lies in the aggregator's slot that was freed k-th (the first
 * `window` messages in slots 0, 1, …). Both ends know the order of messages and of answers, so no slot number travels. The
 * worker's own staging buffer of that number takes the answer, unless the tensor's destination is bound.
 *
 * A lane's connection survives its queue pair. Both ends keep their messages until they know that they arrived, and count the
 * messages that they received. So another queue pair, on another NIC, can take over without a message lost or taken twice, by
 * rw_worker_detach and rw_worker_resume, between rw_worker_claim and rw_worker_release.
 *
 * Threads: any thread may make any call, and one at a time drives the queues. No call starts a thread, and none allocates
 * after rw_worker_add. The caller keeps forked children away.
 */
#ifndef RW_WORKER_H
#define RW_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "../../include/rackweave.h"
#include "../fabric/base/fabric.h"

typedef struct rw_worker rw_worker;

/* The immediate: op | epoch | index within the lane. chunk/imm.go has the same numbers. */
enum { RW_OP_BITS = 3, RW_EPOCH_BITS = 7, RW_INDEX_BITS = 22 };
enum rw_opcode {
	/* enum rw_kind, then: */
	RW_TENSOR = 4, /* tensor control record; index is the lane's tensor index, or all ones to announce a step */
	RW_COMMIT = 5, /* end of a two-phase step; a record out, a record back */
	RW_NOTICE = 6, /* from the aggregator; the epoch is enum rw_notice */
	RW_ABORT = 7,  /* from the aggregator: the job failed; index is the causing worker's rank, or all ones */
};
enum rw_notice {
	RW_NOTICE_NACK = 0,    /* the chunk was dropped, and must be sent again */
	RW_NOTICE_REQUEST = 1, /* the chunk must be sent before others */
};
/* The most chunks of a lane. The highest bit of their indices is reserved, and is 0. chunk/plan.go has the same number. */
enum { RW_MAX_LANE_CHUNKS = 1 << (RW_INDEX_BITS - 1) };
enum { RW_RECORD_BYTES = 64 };
/* What a message of rows carries beside one row. chunk/plan.go has the same constant. */
enum { RW_ROW_BYTES = 16 + 4 };

struct rw_worker_nic {
	rwf_pd *pd;
	rwf_cq *cq;
};

struct rw_worker_lane {
	rwf_qp *qp;         /* connected, with recv_depth receives posted under the lane's number as wr_id */
	uint64_t slot_addr; /* the aggregator's slots for this queue pair, window * chunk_bytes */
	uint32_t slot_rkey;
	uint32_t nic; /* that qp is on */
	uint32_t recv_depth;
};

struct rw_worker_config {
	uint32_t nnics, nlanes;
	uint32_t chunk_bytes;
	uint32_t window;     /* slots per lane */
	uint32_t send_depth; /* max_send_wr of the queue pairs */
	uint32_t nstaging;   /* staging buffers per lane: window, or by reference 2 or more */
	void *staging;       /* nlanes * nstaging * chunk_bytes, in a region that the caller adds before operations */
	uint32_t rank;
	uint64_t cache_bytes;     /* cache of this worker; results of a larger model are written past it; if 0, unknown */
	uint8_t by_reference;     /* the aggregator reads payloads in place */
	uint8_t any_memory;       /* registering ordinary memory is free: use the caller's buffers */
	uint8_t steps;            /* a first push announces each step, and a commit ends it; a pushpull may be answered empty */
	uint8_t answers;          /* enum rw_answers */
	uint8_t resumable;        /* a lane whose queue pair fails waits for rw_worker_resume, and does not fail the worker */
	int isa;                  /* enum rwk_isa */
	uint32_t spin;            /* empty polls before a wait sleeps */
	const uint64_t *clock_ns; /* if NULL, CLOCK_MONOTONIC; otherwise read from here (simulation) */
	uint64_t seed;            /* of the job: stochastic codecs draw by it */
};

/* Opens a worker whose lanes have no queue pairs until rw_worker_resume gives them each one. */
int rw_worker_open(const struct rw_worker_config *cfg, const struct rw_worker_nic *nics, rw_worker **out);
void rw_worker_close(rw_worker *w); /* the caller keeps the queue pairs */

/* Adds memory that the caller registered with every NIC, in their order. Sources and destinations inside need no copy. */
int rw_worker_region(rw_worker *w, const struct rwf_mr *mrs);
/* Removes the region that begins at addr, which no operation uses. */
void rw_worker_forget(rw_worker *w, uint64_t addr);

/* As rw_add in rackweave.h. The chunks are sent in this order, those of a tensor by its offsets. */
int rw_worker_add(rw_worker *w, const struct rw_tensor *tensors, uint32_t ntensors, const uint32_t *chunk_lanes, uint64_t nchunks);

/*
 * Sets the hyper-parameters of a tensor from its next push on: the first 32 bytes of its control record. They travel only when they
 * differ from the last sent.
 */
int rw_worker_hyper(rw_worker *w, uint32_t tensor, const float hyper[RW_HYPERS]);

/* As rw_compress_from, rw_flush and rw_residual in rackweave.h. */
int rw_worker_compress(rw_worker *w, uint32_t tensor, const struct rw_codec *codec, uint32_t from);
void rw_worker_flush(rw_worker *w);
int rw_worker_residual(rw_worker *w, uint32_t tensor, float *values, int set);

/* Sets *codec to that of a tensor's last gradient. */
void rw_worker_codec(rw_worker *w, uint32_t tensor, struct rw_codec *codec);

/* As rw_submit, rw_commit and rw_test in rackweave.h. */
int rw_worker_submit(rw_worker *w, const struct rw_op *ops, uint32_t n, uint64_t *handles);
int rw_worker_commit(rw_worker *w, const float hyper[RW_HYPERS], bool skip, bool skip_non_finite, uint64_t *handle);
int rw_worker_test(rw_worker *w, uint64_t handle);
struct rw_answer {
	float norm, scale;
	uint32_t step;
	int pull;
};
/* Reads the answer to the last commit. Returns -EPROTO without one. */
int rw_worker_answer(rw_worker *w, struct rw_answer *out);
/* As rw_wait_any in rackweave.h. */
int rw_worker_wait_any(rw_worker *w, const uint64_t *handles, uint32_t n, uint32_t timeout_ms, int *status);
/* Makes progress while operations are in flight, and sleeps while none are, until rw_worker_stop. */
void rw_worker_serve(rw_worker *w);
void rw_worker_stop(rw_worker *w);
/* Makes all progress that is possible now. Returns the number of completions taken, or the failure. */
int rw_worker_progress(rw_worker *w);

/*
 * Takes the queues from the driving thread. Until rw_worker_release, the caller may make, connect and destroy queue pairs on them.
 * Returns -EBUSY if the driving thread keeps them.
 */
int rw_worker_claim(rw_worker *w);
void rw_worker_release(rw_worker *w);
/* Sets lanes[i], of nlanes, if a lane's queue pair has failed. Returns their number. Any thread may call it at any time. */
int rw_worker_broken(rw_worker *w, uint8_t *lanes);
/* Claimed: takes a lane's queue pair, failed or not, out of service, to be destroyed. received is the number of messages so far. */
int rw_worker_detach(rw_worker *w, uint32_t lane, uint64_t *received);
/*
 * Claimed: continues over another queue pair, or begins over the first, with an aggregator that has received so many messages of
 * the lane. Its slots do not move from one queue pair to the next. After an error the caller keeps the queue pair.
 */
int rw_worker_resume(rw_worker *w, uint32_t lane, const struct rw_worker_lane *with, uint64_t peer_received);
/* Copies all memory that the aggregator may use, with the keys of a NIC, to mrs, of cap. Returns the number of regions. */
int rw_worker_regions(rw_worker *w, uint32_t nic, struct rwf_mr *mrs, uint32_t cap);

/* Asks for huge pages from address first to last, multiples of their size, if enough memory is free. */
void rw_worker_huge_pages(uint64_t first, uint64_t last);

/* Fails all present and future operations with RW_EABORTED and this text. */
void rw_worker_abort(rw_worker *w, const char *text);
/* Returns the number of operations in flight. */
uint32_t rw_worker_active(rw_worker *w);
/* Returns 0, or the failure with its text in buf. */
int rw_worker_failure(rw_worker *w, char *buf, uint32_t cap);
void rw_worker_stats(rw_worker *w, struct rw_stats *out);

#endif
