/*
 * Fits a line by data-parallel gradient descent: each worker has its own points, the aggregator sums the workers' gradients and
 * runs the optimizer. Run it with
 *
 *	cc -Iinclude -o linear examples/c/linear.c bin/librackweave.so.0 -lm -Wl,-rpath,$PWD/bin
 *	rackweave run -n 4 -- ./linear
 */
#include <rackweave.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 256, STEPS = 200, TIMEOUT_MS = 30000 };

static void must(int rc, const char *what)
{
	if (rc < 0) {
		fprintf(stderr, "%s: %s\n", what, rw_error());
		exit(1);
	}
}

/* The gradient of the mean squared error over a worker's points, which lie near 3 x + 2. */
static double gradient(uint32_t rank, const float *at, float *gradient)
{
	double slope = 0, shift = 0, error = 0;

	for (int i = 0; i < POINTS; i++) {
		double x = (i + 0.5) / POINTS * 2 - 1, y = 3 * x + 2 + 0.1 * sin(i * (rank + 1.0)), miss = at[0] * x + at[1] - y;

		slope += 2 * miss * x / POINTS;
		shift += 2 * miss / POINTS;
		error += miss * miss / POINTS;
	}
	gradient[0] = (float)slope;
	gradient[1] = (float)shift;
	return error;
}

int main(void)
{
	const uint64_t shape[] = {2};
	const struct rw_hyper hyper[] = {{"lr", 0.05}, {"momentum", 0.9}};
	struct rw_job job = {.size = sizeof job, .timeout_ms = TIMEOUT_MS, .optimizer = "sgd_torch", .hyper = hyper, .nhyper = 2};
	struct rw_parameter line = {.size = sizeof line,
				    .wire_type = RW_F32,
				    .memory_type = RW_F32,
				    .name = "line",
				    .shape = shape,
				    .ndim = 1,
				    .lr_mult = 1,
				    .wd_mult = 1};
	struct rw_info info = {.size = sizeof info};
	struct rw_op op = {.size = sizeof op, .kind = RW_BROADCAST};
	rw_session *session;
	uint64_t handle;
	double error = 0;
	void *memory;
	float *at;

	must(rw_join(&job, &session), "join");
	must(rw_register(session, &line, 1), "register");
	must(rw_query(session, &info), "query");

	/* Arena memory is sent from and received into without a copy. */
	must(rw_alloc(4 * sizeof *at, &memory), "allocate");
	at = memory;
	at[0] = at[1] = 0;

	/* All workers start from rank 0's parameters. */
	op.src = op.dst = at;
	must(rw_submit(session, &op, 1, &handle), "broadcast");
	must(rw_wait_all(session, &handle, 1, TIMEOUT_MS), "broadcast");

	op.kind = RW_PUSHPULL;
	op.src = at + 2;
	for (int step = 0; step < STEPS; step++) {
		error = gradient(info.rank, at, at + 2);
		for (int i = 2; i < 4; i++)
			at[i] /= (float)info.workers; /* the aggregator sums */
		must(rw_submit(session, &op, 1, &handle), "push");
		must(rw_wait_all(session, &handle, 1, TIMEOUT_MS), "pull");
	}
	printf("y = %.4f x + %.4f, mean squared error %.4f\n", at[0], at[1], error);
	must(rw_barrier(session, "end"), "barrier");
	must(rw_close(session), "leave");
	rw_free(memory);
	return 0;
}
