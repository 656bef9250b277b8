/*
 * Exchanges of MXNet's NDArrays as operations of MXNet's own engine, so that they wait for what they read, and what reads their
 * results waits for them, while training goes on. For rackweave.mxnet. Needs MXNet 1.5 to 1.9, whose functions are handed in:
 * the library does not link libmxnet.
 */
#ifndef RACKWEAVE_MXNET_H
#define RACKWEAVE_MXNET_H

#include "rackweave.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of libmxnet, the first four of its C API. */
struct rw_mx_engine {
	uint32_t size, reserved;
	int (*push_async)(void (*run)(void *, void *, void *), void *arg, void (*release)(void *), const void *context,
			  void **reads, int nreads, void **writes, int nwrites, const void *property, int priority,
			  const char *name, bool wait);
	int (*copy_handle)(void *array, void **out);
	int (*free_handle)(void *array);
	int (*data)(void *array, void **out);
	void (*plain_layout)(void *chunk); /* NDArray::Chunk::Reorder2Default */
};

/* A store: the exchanges of a session. One that is closed must have no exchange in flight. */
typedef struct rw_mx_store rw_mx_store;
RW_API int rw_mx_open(rw_session *session, const struct rw_mx_engine *engine, rw_mx_store **store);
RW_API void rw_mx_close(rw_mx_store *store);

enum rw_mx_nonfinite {
	RW_MX_IGNORE, /* nothing: src is not looked at */
	RW_MX_COUNT,
	RW_MX_REFUSE, /* counts, and the exchange fails */
};

struct rw_mx_exchange {
	uint32_t size;
	uint32_t tensor;
	uint8_t kind;       /* enum rw_kind */
	uint8_t nonfinite;  /* what a NaN or an infinity in a gradient does: enum rw_mx_nonfinite */
	uint8_t elem_bytes; /* of src, where that is asked */
	uint8_t reserved;
	int32_t priority;
	uint64_t elems;
	void *src, *dst;    /* NDArrays of the tensor's type and size; may be the same */
	void *order;        /* an NDArray of one element: exchanges with the same one run in the order of these calls */
	const float *hyper; /* RW_HYPERS values, or NULL; they are copied */
};
/*
 * Queues an exchange in MXNet's engine and returns at once. Once one has failed, this returns its error. MXNet's engine does not
 * learn of it: what waits for the result of one that failed goes on, with an array that may hold anything.
 */
RW_API int rw_mx_start(rw_mx_store *store, const struct rw_mx_exchange *exchange);

/*
 * Queues the end of this worker's step, in mode stream: it runs when the exchanges with these arrays for their order, which must be
 * all that were started, are done, and exchanges that are started later run when the job's policy lets the next step begin.
 */
RW_API int rw_mx_end_step(rw_mx_store *store, void *const *orders, uint32_t n);

struct rw_mx_state {
	uint32_t size;
	int32_t failed;                           /* 0, or the first failure of an exchange */
	uint64_t pending;                         /* exchanges that were queued and are not done */
	uint64_t oldest_ms;                       /* age of the oldest of them that the engine has run, or 0 */
	uint64_t nonfinite;                       /* gradients that held a NaN or an infinity */
	uint32_t oldest_tensor, nonfinite_tensor; /* of the oldest exchange; of the first such gradient */
	char text[600];                           /* what the data path says of the failure */
};
RW_API int rw_mx_query(rw_mx_store *store, struct rw_mx_state *out);

/*
 * Arena memory as a DLManagedTensor for MXNDArrayFromDLPackEx. Its deleter, which MXNet may call from any thread and at exit,
 * gives the memory back. code and bits are DLPack's.
 */
RW_API int rw_mx_tensor(const int64_t *shape, int32_t ndim, uint8_t code, uint8_t bits, void **managed);

#ifdef __cplusplus
}
#endif

#endif
