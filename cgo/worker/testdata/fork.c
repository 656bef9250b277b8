/* A worker works on in the parent after fork(), and every call refuses in the child. Prints "ok", or what was wrong. */
#include "../worker.h"
#include "../../fabric/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WINDOW = 4, DEPTH = 32, CHUNK_BYTES = 4096, ELEMS = CHUNK_BYTES / 4 };

static char staging[WINDOW * CHUNK_BYTES], slots[WINDOW * CHUNK_BYTES];
static float gradient[ELEMS], result[ELEMS];

static void must(int rc, const char *what)
{
	if (rc < 0) {
		printf("%s: %d: %s\n", what, rc, rwf_last_error());
		exit(1);
	}
}

struct end {
	rwf_device *dev;
	rwf_pd *pd;
	rwf_cq *cq;
	rwf_qp *qp;
	struct rwf_mr mr;
	char endpoint[RWF_ENDPOINT_MAX];
	int endpoint_len;
};

static void open_end(struct end *e, const char *name, const char *options, void *memory, size_t bytes)
{
	struct rwf_qp_init init = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH};

	must(rwf_open("sim", name, options, &e->dev), "open");
	must(rwf_alloc_pd(e->dev, &e->pd), "allocate protection domain");
	must(rwf_create_cq(e->dev, 4 * DEPTH, &e->cq), "create completion queue");
	must(rwf_reg_mr(e->pd, memory, bytes, RWF_ACCESS_LOCAL_WRITE | RWF_ACCESS_REMOTE_WRITE, -1, 0, &e->mr), "register");
	init.send_cq = init.recv_cq = e->cq;
	must(rwf_create_qp(e->pd, &init, &e->qp), "create queue pair");
	e->endpoint_len = rwf_qp_endpoint(e->qp, e->endpoint, sizeof e->endpoint);
	must(e->endpoint_len, "endpoint");
}

/* Every call in the child; the first that does not refuse is the exit status. */
static int child(rw_worker *w, uint64_t handle, const struct rw_op *op)
{
	const float hyper[8] = {0};
	const struct rw_worker_lane lane = {0};
	struct rw_stats stats = {0};
	struct rwf_mr mrs[4];
	uint8_t broken[1];
	char text[256];
	uint64_t other;

	if (rw_worker_submit(w, op, 1, &other) != RW_EFORKED)
		return 1;
	if (rw_worker_test(w, handle) != RW_EFORKED)
		return 2;
	if (rw_worker_wait(w, handle, 1000) != RW_EFORKED)
		return 3;
	if (rw_worker_progress(w) != RW_EFORKED)
		return 4;
	if (rw_worker_commit(w, text, text, &other) != RW_EFORKED)
		return 5;
	if (rw_worker_failure(w, text, sizeof text) != RW_EFORKED || !strstr(text, "child"))
		return 6;
	if (rw_worker_add(w, NULL, 0, NULL, NULL) != RW_EFORKED)
		return 7;
	if (rw_worker_hyper(w, 0, hyper, 0) != RW_EFORKED)
		return 8;
	if (rw_worker_region(w, mrs) != RW_EFORKED || rw_worker_forget(w, 0) != RW_EFORKED ||
	    rw_worker_regions(w, 0, mrs, 4) != RW_EFORKED)
		return 9;
	if (rw_worker_claim(w) != RW_EFORKED || rw_worker_broken(w, broken) != RW_EFORKED)
		return 10;
	if (rw_worker_detach(w, 0, &other) != RW_EFORKED || rw_worker_resume(w, 0, &lane, 0) != RW_EFORKED)
		return 11;
	rw_worker_release(w);
	rw_worker_abort(w, "not heard");
	rw_worker_stats(w, &stats);
	return stats.sent_chunks ? 12 : 0;
}

int main(void)
{
	struct rwf_sim *sim = rwf_sim_new(1);
	struct end box, me;
	struct rwf_connect_attr passive = {.active = 0}, active = {.active = 1};
	struct rw_tensor_desc tensor = {.elems = ELEMS, .wire_type = 1, .memory_type = 1};
	struct rw_chunk_desc chunk = {.tensor = 0, .elems = ELEMS};
	const struct rw_chunk_desc *chunks[] = {&chunk};
	struct rw_op op = {.size = sizeof op, .src = gradient, .dst = result, .kind = RW_PUSHPULL};
	struct rwf_send_wr answer = {.opcode = RWF_WRITE_WITH_IMM, .length = CHUNK_BYTES};
	struct rw_worker_lane lane;
	struct rw_worker_nic nic;
	struct rw_worker_config cfg = {.nlanes = 1, .chunk_bytes = CHUNK_BYTES, .window = WINDOW, .nstaging = WINDOW};
	struct rwf_wc wc;
	char options[64];
	uint32_t nchunks = 1;
	uint64_t handle;
	rw_worker *w;
	int status, pid;

	snprintf(options, sizeof options, "world=%d", rwf_sim_id(sim));
	open_end(&box, "box", options, slots, sizeof slots);
	open_end(&me, "worker", options, staging, sizeof staging);
	must(rwf_connect_qp(box.qp, me.endpoint, (size_t)me.endpoint_len, &passive), "connect");
	must(rwf_connect_qp(me.qp, box.endpoint, (size_t)box.endpoint_len, &active), "connect");
	must(rwf_post_recv(box.qp, 0, WINDOW), "post receive");
	must(rwf_post_recv(me.qp, 0, WINDOW), "post receive");
	lane = (struct rw_worker_lane){
		.qp = me.qp, .slot_addr = box.mr.addr, .slot_rkey = box.mr.rkey, .send_depth = DEPTH, .recv_depth = WINDOW};
	nic = (struct rw_worker_nic){me.pd, me.cq, me.mr.lkey, me.mr.rkey};
	cfg.nics = &nic;
	cfg.nnics = 1;
	cfg.lanes = &lane;
	cfg.staging = staging;
	must(rw_worker_open(&cfg, &w), "open worker");
	must(rw_worker_add(w, &tensor, 1, chunks, &nchunks), "add");
	for (int i = 0; i < ELEMS; i++)
		gradient[i] = (float)i;
	must(rw_worker_submit(w, &op, 1, &handle), "submit");

	pid = fork();
	if (pid == 0)
		_exit(child(w, handle, &op));
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		printf("call %d did not refuse in the child (status 0x%x)\n", WEXITSTATUS(status), status);
		return 1;
	}

	/* The parent's operation goes on: the box echoes the gradient as the answer. */
	for (int i = 0; i < 1000 && rwf_poll_cq(box.cq, &wc, 1) != 1; i++)
		rwf_sim_step(sim);
	answer.laddr = box.mr.addr;
	answer.lkey = box.mr.lkey;
	answer.raddr = me.mr.addr;
	answer.rkey = me.mr.rkey;
	answer.imm = wc.imm;
	must(rwf_post_send(box.qp, &answer, 1), "answer");
	for (int i = 0; i < 1000 && rw_worker_test(w, handle) == 0; i++) {
		rwf_sim_step(sim);
		must(rw_worker_progress(w), "progress");
	}
	if (rw_worker_test(w, handle) != 1 || memcmp(gradient, result, sizeof result) != 0) {
		printf("the parent's operation did not finish: %d\n", rw_worker_test(w, handle));
		return 1;
	}
	rw_worker_close(w);
	puts("ok");
	return 0;
}
