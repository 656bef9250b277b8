/*
 * A worker's data path: tensors go out as chunks and come back as parameters, over any provider of the transport contract.
 *
 * There is one queue pair for each lane (a core of the aggregator with its NIC), and one completion queue for each NIC of the
 * worker's, for all lanes on it. The plan (package chunk) says which chunks a lane has; rw_worker_add takes it. Every message to
 * the aggregator holds one slot of the lane's window until the aggregator answers it: the answer is the credit.
 *
 * Where a slot is not by reference, message k of a queue pair lies in the aggregator's slot that was freed k-th (the first
 * `window` messages in slots 0, 1, …): both ends know the order of messages and of answers, so no slot number travels. The
 * worker's own staging buffer of that number takes the answer, unless the tensor's destination is bound.
 *
 * A lane's connection outlives its queue pair. Both ends keep what they sent until they know that it arrived, and count what
 * they received; so another queue pair, on another NIC, can take over without a message lost or taken twice: rw_worker_detach
 * and rw_worker_resume, between rw_worker_claim and rw_worker_release.
 *
 * Threads: every call may come from any thread, one of them at a time drives the queues. Nothing here starts a thread and
 * nothing allocates after rw_worker_add. In a forked child every call returns RW_EFORKED and touches nothing.
 */
#ifndef RW_WORKER_H
#define RW_WORKER_H

#include <stdint.h>

#include "../../include/rackweave.h"
#include "../fabric/base/fabric.h"

typedef struct rw_worker rw_worker;

/* The immediate: op | epoch | index within the lane. The same numbers stand in chunk/imm.go. */
enum { RW_OP_BITS = 3, RW_EPOCH_BITS = 7, RW_INDEX_BITS = 22 };
enum rw_opcode {
	/* enum rw_kind, then: */
	RW_TENSOR = 4, /* tensor control record; index is the lane's tensor index; all ones: the record announces a step */
	RW_COMMIT = 5, /* end of a two-phase step; record out, record back */
	RW_NOTICE = 6, /* from the aggregator; the epoch says what of the chunk */
	RW_ABORT = 7,  /* from the aggregator: the job failed; index is the rank of the worker that caused it, all ones: none did */
};
enum rw_notice {
	RW_NOTICE_NACK = 0,    /* it is not kept any more: send it again */
	RW_NOTICE_REQUEST = 1, /* send it before others */
	RW_NOTICE_MOVE = 2,    /* and above: once it is answered, it belongs to lane epoch - RW_NOTICE_MOVE */
};
/*
 * Marks the index of a guest, a chunk that has moved from the lane where it was added: its index there * nlanes + that lane. In
 * control records it marks the number of a tensor of which nothing was added to the lane. The same stands in chunk/imm.go.
 */
enum { RW_GUEST_BIT = 1 << (RW_INDEX_BITS - 1) };
enum { RW_RECORD_BYTES = 64 };

struct rw_worker_nic {
	rwf_pd *pd;
	rwf_cq *cq;
	uint32_t staging_lkey, staging_rkey;
};

struct rw_worker_lane {
	rwf_qp *qp;         /* connected, with recv_depth receives posted under the lane's number as wr_id */
	uint64_t slot_addr; /* the aggregator's slots for this queue pair, window * chunk_bytes */
	uint32_t slot_rkey;
	uint32_t send_depth; /* max_send_wr of qp */
	uint32_t nic;        /* that qp is on */
	uint32_t recv_depth;
};

struct rw_worker_config {
	const struct rw_worker_nic *nics;
	const struct rw_worker_lane *lanes;
	uint32_t nnics, nlanes;
	uint32_t chunk_bytes;
	uint32_t window;   /* slots per lane */
	uint32_t nstaging; /* staging buffers per lane; equals window unless by reference: then 2 or more */
	void *staging;     /* nlanes * nstaging * chunk_bytes, registered with remote write */
	uint32_t rank;
	uint64_t cache_bytes;     /* there are for this worker: results of a larger model are written past them; 0: of none */
	uint8_t by_reference;     /* the aggregator reads payloads where they lie */
	uint8_t any_memory;       /* registering ordinary memory is free: send from and receive into the caller's buffers */
	uint8_t steps;            /* each step is announced with its first push and ended by a commit; a pushpull may get nothing */
	uint8_t resumable;        /* a lane whose queue pair fails waits for rw_worker_resume, and does not fail the worker */
	int isa;                  /* enum rwk_isa */
	uint32_t spin;            /* empty polls before a wait sleeps */
	const uint64_t *clock_ns; /* NULL: CLOCK_MONOTONIC; else read from here (simulation) */
};

struct rw_tensor_desc {
	uint64_t elems;
	uint8_t wire_type, memory_type; /* enum rw_type */
};

struct rw_chunk_desc {
	uint64_t offset; /* elements into the tensor */
	uint32_t tensor, elems;
};

int rw_worker_open(const struct rw_worker_config *cfg, rw_worker **out);
void rw_worker_close(rw_worker *w); /* the queue pairs stay the caller's */

/* Memory the caller registered with every NIC, in their order: sources and destinations inside need no copy. */
int rw_worker_region(rw_worker *w, const struct rwf_mr *mrs);
/* Gives up the region that begins at addr, which no operation uses. */
int rw_worker_forget(rw_worker *w, uint64_t addr);

/* Appends tensors, and each lane's chunks of them in the plan's order. */
int rw_worker_add(rw_worker *w, const struct rw_tensor_desc *tensors, uint32_t ntensors, const struct rw_chunk_desc *const *chunks,
		  const uint32_t *nchunks);

/*
 * Hyper-parameters of a tensor from its next push on: the first 32 bytes of its control record. They travel only when they
 * differ from the last sent.
 */
int rw_worker_hyper(rw_worker *w, uint32_t tensor, const float hyper[8], uint32_t flags);

/* As rw_submit, rw_commit and rw_test in rackweave.h. record goes out, and answer takes what comes back; they may be the same. */
int rw_worker_submit(rw_worker *w, const struct rw_op *ops, uint32_t n, uint64_t *handles);
int rw_worker_commit(rw_worker *w, const void *record, void *answer, uint64_t *handle);
int rw_worker_test(rw_worker *w, uint64_t handle);
/* Makes the record of a commit, and reads its answer: -EPROTO where that is none. */
void rw_worker_step(void *record, const float hyper[RW_HYPERS], int skip, int skip_non_finite);
int rw_worker_committed(const void *answer, float *norm, float *scale);
int rw_worker_stepped(const void *answer, uint32_t *step, int *pull);
/* 0 when done; -ETIMEDOUT after timeout_ms, and the worker is failed: the step cannot be finished any more. */
int rw_worker_wait(rw_worker *w, uint64_t handle, uint32_t timeout_ms);
/* As rw_wait_any in rackweave.h. */
int rw_worker_wait_any(rw_worker *w, const uint64_t *handles, uint32_t n, uint32_t timeout_ms, int *status);
/* Makes progress while operations are in flight, and sleeps while there are none, until rw_worker_stop. */
void rw_worker_serve(rw_worker *w);
void rw_worker_stop(rw_worker *w);
/* Makes what progress is possible now; returns the number of completions taken, or the failure. */
int rw_worker_progress(rw_worker *w);

/*
 * Takes the queues from whoever drives them: until rw_worker_release, the caller may make, connect and destroy queue pairs on
 * them. It waits for that, not long: then it is -EBUSY.
 */
int rw_worker_claim(rw_worker *w);
void rw_worker_release(rw_worker *w);
/* Sets lanes[i], of nlanes, where a lane's queue pair has failed; returns how many. Any thread, at any time. */
int rw_worker_broken(rw_worker *w, uint8_t *lanes);
/* Claimed: takes a lane's queue pair, failed or not, out of service, to be destroyed. *received: messages so far. */
int rw_worker_detach(rw_worker *w, uint32_t lane, uint64_t *received);
/*
 * Claimed: goes on over another queue pair, ready as for rw_worker_open, with an aggregator that has received so many
 * messages of the lane. Its slots are where they were. After an error the queue pair stays the caller's.
 */
int rw_worker_resume(rw_worker *w, uint32_t lane, const struct rw_worker_lane *with, uint64_t peer_received);
/* All memory that the aggregator may be told of, with the keys of a NIC, into mrs, of cap; returns how many there are. */
int rw_worker_regions(rw_worker *w, uint32_t nic, struct rwf_mr *mrs, uint32_t cap);

/* Asks for huge pages from address first to last, multiples of their size, where enough memory is free. */
void rw_worker_huge_pages(uint64_t first, uint64_t last);

/* Fails everything in flight and to come with RW_EABORTED and this text. */
void rw_worker_abort(rw_worker *w, const char *text);
/* How many operations are in flight. */
uint32_t rw_worker_active(rw_worker *w);
/* 0, or the failure, its text in buf. */
int rw_worker_failure(rw_worker *w, char *buf, uint32_t cap);
void rw_worker_stats(rw_worker *w, struct rw_stats *out);

#endif
