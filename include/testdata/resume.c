/*
 * A lane whose queue pair fails goes on over another NIC: nothing is lost, and nothing comes twice. The program plays the
 * aggregator's part on a simulated network; it echoes what it gets.
 */
#include "check.h"
#include "cgo/fabric/sim/sim.h"
#include "cgo/worker/worker.h"

enum { WINDOW = 4, DEPTH = 64, CHUNK = 4096, CHUNKS = 40, ELEMS = CHUNK / 4, STEPS = 20000 };

static struct rwf_sim *sim;
static struct {
	rwf_device *dev;
	rwf_pd *pd;
	rwf_cq *cq;
	rwf_qp *qp;
	struct rwf_mr mr, kept;
	uint32_t slots[WINDOW], head; /* free ones, in the order they became so */
	uint64_t received;            /* messages */
	struct rwf_send_wr answers[2 * CHUNKS];
	uint64_t answered;
	uint64_t dst;
	uint32_t rkey;
	int seen[CHUNKS];
	struct rw_region regions[8];
	int nregions;
} box;
static char slots[WINDOW * CHUNK], replies[2 * CHUNKS * CHUNK]; /* by answer: they may be sent again */
static rw_session *session;

static void must(int rc)
{
	CHECK(rc >= 0);
}

static void make_queue_pair(void)
{
	const struct rwf_qp_init init = {.send_cq = box.cq, .recv_cq = box.cq, .max_send_wr = 2 * CHUNKS, .max_recv_wr = DEPTH};

	must(rwf_create_qp(box.pd, &init, &box.qp));
}

/* Connects the aggregator's queue pair to the worker's end, and describes it. */
static struct rw_endpoint meet(const struct rw_endpoint *worker)
{
	struct rw_endpoint end = {.size = sizeof end, .addr = box.mr.addr, .rkey = box.mr.rkey};
	const struct rwf_connect_attr passive = {.timeout_ms = 1000};
	int n = rwf_qp_endpoint(box.qp, end.bytes, sizeof end.bytes);

	must(n);
	end.length = (uint32_t)n;
	must(rwf_connect_qp(box.qp, worker->bytes, worker->length, &passive));
	must(rwf_post_recv(box.qp, 0, DEPTH));
	return end;
}

static uint32_t key_of(uint64_t addr)
{
	for (int i = 0; i < box.nregions; i++)
		if (addr - box.regions[i].addr < box.regions[i].length)
			return box.regions[i].rkey;
	return 0;
}

/* Answers a message: a record with nothing, a chunk with what it brought. */
static void answer(uint32_t imm)
{
	uint32_t slot = box.slots[box.head], op = imm >> 29, index = imm & ((1u << RW_INDEX_BITS) - 1);
	const char *payload = slots + (size_t)slot * CHUNK;
	struct rwf_send_wr *wr = &box.answers[box.answered++];

	box.head = (box.head + 1) % WINDOW; /* the slot is free again, behind the others */
	*wr = (struct rwf_send_wr){.opcode = RWF_WRITE_WITH_IMM, .imm = imm};
	if (op == RW_TENSOR) {
		memcpy(&box.dst, payload + 32, sizeof box.dst);
	} else {
		CHECK(op == RW_PUSHPULL && index < CHUNKS && !box.seen[index]++);
		wr->laddr = (uintptr_t)memcpy(replies + (box.answered - 1) * CHUNK, payload, CHUNK);
		wr->lkey = box.kept.lkey;
		wr->length = CHUNK;
		wr->raddr = box.dst + (uint64_t)index * CHUNK;
		wr->rkey = key_of(wr->raddr);
	}
	must(rwf_post_send(box.qp, wr, 1));
}

/* Lets the network run until the aggregator has received so many messages, and answers them. */
static void run_until(uint64_t received)
{
	for (int i = 0; i < STEPS && box.received < received; i++) {
		struct rwf_wc wc;

		rwf_sim_step(sim);
		must(rw_progress(session));
		while (box.received < received && rwf_poll_cq(box.cq, &wc, 1) == 1) {
			if (wc.opcode != RWF_WC_RECV_IMM || wc.status != RWF_WC_SUCCESS)
				continue;
			box.received++;
			answer(wc.imm);
		}
	}
	CHECK(box.received == received);
}

static int broken(void)
{
	uint8_t lanes[1];

	return rw_broken(session, lanes);
}

/* Moves the lane to the worker's other NIC. */
static void fail_over(void)
{
	const struct rw_connect how = {.size = sizeof how, .timeout_ms = 1000, .ack_timeout_ms = 1000, .resumable = 1};
	struct rw_endpoint mine = {.size = sizeof mine}, theirs;
	struct rwf_wc wc;
	uint64_t received;

	must(rwf_fail_qp(box.qp));
	for (int i = 0; i < STEPS && !broken(); i++) {
		rwf_sim_step(sim);
		must(rw_progress(session));
	}
	CHECK(broken() == 1);
	must(rw_detach(session, 0, 1, &mine, &received));
	/* What came before the failure is answered, if only in the ring: the worker has not received it. */
	while (rwf_poll_cq(box.cq, &wc, 1) == 1)
		CHECK(wc.status != RWF_WC_SUCCESS || wc.opcode != RWF_WC_RECV_IMM);
	must(rwf_destroy_qp(box.qp));
	make_queue_pair();
	theirs = meet(&mine);
	box.nregions = rw_regions(session, 1, box.regions, 8);
	CHECK(box.nregions > 0 && box.nregions <= 8);
	CHECK(rw_resume(session, 0, &theirs, box.received, &how) == 0 && broken() == 0);
	CHECK(received <= box.answered);
	for (uint64_t i = received; i < box.answered; i++) {
		struct rwf_send_wr *wr = &box.answers[i];

		wr->rkey = wr->length ? key_of(wr->raddr) : 0;
		must(rwf_post_send(box.qp, wr, 1));
	}
}

int main(int argc, char **argv)
{
	static const char *const devices[] = {"worker.0", "worker.1"};
	const struct rw_connect how = {.size = sizeof how, .timeout_ms = 1000, .ack_timeout_ms = 1000, .resumable = 1};
	const uint32_t lane_nics[] = {0}, chunk_lanes[CHUNKS] = {0};
	const struct rw_tensor tensor = {
		.size = sizeof tensor, .wire_type = RW_F32, .memory_type = RW_F32, .elems = (uint64_t)CHUNKS * ELEMS};
	struct rw_config cfg = {.size = sizeof cfg,
				.provider = "sim",
				.devices = devices,
				.ndevices = 2,
				.lane_nics = lane_nics,
				.nlanes = 1,
				.chunk_bytes = CHUNK,
				.window = WINDOW,
				.send_depth = DEPTH,
				.recv_depth = DEPTH,
				.no_thread = 1};
	struct rw_endpoint mine = {.size = sizeof mine}, theirs;
	struct rw_op op = {.size = sizeof op, .kind = RW_PUSHPULL};
	char options[64];
	uint64_t handle;
	void *memory;
	float *w;

	sim = rwf_sim_new(1);
	snprintf(options, sizeof options, "world=%d", rwf_sim_id(sim));
	cfg.options = options;
	must(rwf_open("sim", "box", options, &box.dev));
	must(rwf_alloc_pd(box.dev, &box.pd));
	must(rwf_create_cq(box.dev, 1024, &box.cq));
	must(rwf_reg_mr(box.pd, slots, sizeof slots, RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE, -1, 0, &box.mr));
	must(rwf_reg_mr(box.pd, replies, sizeof replies, RWF_ACCESS_LOCAL_WRITE, -1, 0, &box.kept));
	for (uint32_t i = 0; i < WINDOW; i++)
		box.slots[i] = i;
	make_queue_pair();
	CHECK(rw_alloc((size_t)CHUNKS * CHUNK, &memory) == 0);
	w = memory;
	for (int i = 0; i < CHUNKS * ELEMS; i++)
		w[i] = (float)i;

	CHECK(rw_open(&cfg, &session) == 0);
	CHECK(rw_add(session, &tensor, 1, chunk_lanes, CHUNKS) < 0 && strstr(rw_error(), "not connected"));
	must(rw_endpoint(session, 0, &mine));
	theirs = meet(&mine);
	CHECK(rw_connect(session, &theirs, 1, &how) == 0);
	CHECK(rw_add(session, &tensor, 1, chunk_lanes, CHUNKS - 1) < 0 && strstr(rw_error(), "pass what Register answered"));
	CHECK(rw_add(session, &tensor, 1, chunk_lanes, CHUNKS) == 0);
	box.nregions = rw_regions(session, 0, box.regions, 8);
	op.src = op.dst = w;
	CHECK(rw_submit(session, &op, 1, &handle) == 1);
	run_until(argc > 1 ? (uint64_t)atoi(argv[1]) : 10); /* before it breaks */
	fail_over();
	run_until(CHUNKS + 1);
	for (int i = 0; i < STEPS && rw_test(session, handle) == 0; i++) {
		rwf_sim_step(sim);
		must(rw_progress(session));
	}
	CHECK(rw_test(session, handle) == 1);
	for (int i = 0; i < CHUNKS; i++)
		CHECK(box.seen[i] == 1);
	for (int i = 0; i < CHUNKS * ELEMS; i++)
		CHECK(w[i] == (float)i);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
