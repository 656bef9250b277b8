/*
 * What a program that "rackweave run" started says to it, instead of calls of HTTP: requests over the Unix stream socket whose path
 * RACKWEAVE_CONTROL has, each answered before the next. Both ends are on one host: numbers are in its byte order. Texts end with
 * a zero. The aggregator counts the worker as lost when the connection ends before CONTROL_LEAVE.
 */
#ifndef RACKWEAVE_CONTROL_H
#define RACKWEAVE_CONTROL_H

#include <stdint.h>

#include "include/rackweave.h"

enum control_kind {
	CONTROL_ERROR = 0, /* an answer: the payload is a text, without a zero at its end */
	CONTROL_JOIN = 1,
	CONTROL_CONNECT = 2,
	CONTROL_REGISTER = 3,
	CONTROL_BARRIER = 4,
	CONTROL_LEAVE = 5,
	CONTROL_POLICY = 6,
	CONTROL_LOSS = 7,
	CONTROL_CODECS = 8, /* over a connection of its own */
};

enum { CONTROL_MAX_BYTES = 64 << 20, CONTROL_DIMS = 8, CONTROL_HYPERS = 16 };

/* Before every request and answer; an answer has its request's kind, or CONTROL_ERROR. */
struct control_head {
	uint32_t kind;
	uint32_t bytes; /* of the payload that follows */
};

struct control_hyper {
	char name[16];
	double value;
};

struct control_join {
	char mode[16], optimizer[32];     /* as in JoinRequest. If empty, its default */
	char policy[96], compress[64];    /* as in JoinRequest */
	char provider[16], providers[64]; /* the one asked for, or auto; the usable ones, with commas between them */
	uint32_t chunk_bytes, timeout_ms; /* 0: the aggregator's default */
	uint32_t pid, uid, nhyper, reserved;
	struct control_hyper hyper[CONTROL_HYPERS];
};

struct control_joined {
	char provider[16]; /* for rw_config */
	uint32_t rank, workers, local_workers;
	uint32_t chunk_bytes, window, send_depth, recv_depth;
	uint32_t link_timeout_ms;
	uint32_t by_reference, live_hyper, steps;
	uint32_t answers;          /* enum rw_answers */
	struct rw_codec gradients; /* for rw_compress */
	float record[RW_HYPERS];
	uint32_t nlanes, decides; /* whether the aggregator chooses codecs while the job runs */
	uint32_t lane_nics[RW_MAX_LANES];
};

/* CONTROL_CODECS: whether the worker uses the codecs of the answer before. Its answer comes when there are other codecs. */
struct control_accept {
	uint32_t accepted, reserved;
};

/* That answer: this, and a struct rw_codec for each tensor. */
struct control_codecs {
	uint32_t from, reserved; /* as in rw_compress_from */
};

/* CONTROL_CONNECT: this, and an rw_endpoint for each lane. Its answer: an rw_endpoint for each lane. */
struct control_connect {
	uint32_t ack_timeout_ms, timeout_ms;
};

/* CONTROL_REGISTER: this, and the tensors. Its answer: for each chunk of these tensors, in order, its lane as a uint32_t. */
struct control_register {
	uint32_t ntensors, timeout_ms;
};

struct control_tensor {
	char name[128];
	uint64_t shape[CONTROL_DIMS];
	uint32_t ndim, wire_type; /* enum rw_type */
	uint32_t rows, reserved;  /* enum rw_rows */
	double lr_mult, wd_mult;
};

/* CONTROL_BARRIER, CONTROL_LEAVE, CONTROL_POLICY and CONTROL_LOSS. Their answers are empty. */
struct control_tell {
	char text[256]; /* the barrier's name, the policy, or why the worker cannot go on; of one that is done: empty */
	double value;   /* the loss */
	uint32_t timeout_ms, reserved;
};

#endif
