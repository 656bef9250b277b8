/* What a session does for a worker that rackweave run started. */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 30000, TENSORS = 3 };

static const uint64_t sizes[TENSORS] = {100000, 7, 300000};
static rw_session *session;
static struct rw_info info = {.size = sizeof info};
static float *memory[TENSORS];

static void fill(float value)
{
	for (int t = 0; t < TENSORS; t++)
		for (uint64_t i = 0; i < sizes[t]; i++)
			memory[t][i] = value + (float)(i % 5);
}

static void expect(float value)
{
	for (int t = 0; t < TENSORS; t++)
		for (uint64_t i = 0; i < sizes[t]; i++)
			CHECK(memory[t][i] == value + (float)(i % 5) * (float)info.workers);
}

static float sum_of_ranks(void)
{
	return (float)(info.workers * (info.workers + 1) / 2);
}

static void submit(uint64_t handles[TENSORS], rw_done_fn done, void *arg)
{
	struct rw_op ops[TENSORS];

	for (uint32_t t = 0; t < TENSORS; t++)
		ops[t] = (struct rw_op){.size = sizeof ops[t],
					.tensor = t,
					.src = memory[t],
					.dst = memory[t],
					.kind = RW_PUSHPULL,
					.done = done,
					.done_arg = arg,
					.priority = (int32_t)t};
	CHECK(rw_submit(session, ops, TENSORS, handles) == TENSORS);
}

static void exchange(void)
{
	uint64_t handles[TENSORS];

	fill((float)(info.rank + 1));
	submit(handles, NULL, NULL);
	CHECK(rw_wait_all(session, handles, TENSORS, WAIT_MS) == 0);
	expect(sum_of_ranks());
}

/* Each worker sends row 5 twice, and one of its own. */
static void some_rows(float *values)
{
	static int64_t touched[3000];
	float grads[3 * 7], sum = sum_of_ranks();
	int64_t ids[3] = {5, 10 + info.rank, 5}, back[2] = {3000, 0};
	struct {
		uint32_t size;
		uint8_t wire_type, memory_type, reserved[2];
		uint64_t elems;
	} old[2] = {{sizeof *old, RW_F32, RW_F32, {0}, 4}, {sizeof *old, RW_F32, RW_F32, {0}, 5}};
	uint64_t handle, n = 0;
	struct rw_op op = {.size = sizeof op,
			   .tensor = TENSORS,
			   .kind = RW_PUSHPULL,
			   .src = grads,
			   .dst = values,
			   .ids = ids,
			   .union_ids = touched,
			   .nunion = &n};

	for (int i = 0; i < 3 * 7; i++)
		grads[i] = (float)(info.rank + 1);
	op.nids = (uint64_t)rw_sum_rows(ids, 3, grads, 7, RW_F32);
	CHECK(op.nids == 2 && ids[0] == 5 && grads[0] == 2 * grads[7]);
	CHECK(rw_submit(session, &op, 1, &handle) == 1);
	CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0);
	CHECK(n == 1 + info.workers && touched[0] == 5);
	for (uint32_t i = 0; i < info.workers; i++)
		CHECK(touched[1 + i] == 10 + i && values[(10 + i) * 7] == (float)(1 + i));
	CHECK(values[5 * 7] == 2 * sum && values[4 * 7] == 4 * 7);
	op.kind = RW_PUSH;
	op.ids = back;
	CHECK(rw_submit(session, &op, 1, &handle) == -EINVAL && strstr(rw_error(), "id 0 is 3000: use rows from 0 to 2999"));
	op.tensor = 0;
	CHECK(rw_submit(session, &op, 1, &handle) == -EINVAL && strstr(rw_error(), "dense tensor 0"));
	op.size = offsetof(struct rw_op, ids); /* of a program that was built before there were rows */
	op.kind = RW_PUSHPULL + RW_BROADCAST;
	CHECK(rw_submit(session, &op, 1, &handle) == -EINVAL && strstr(rw_error(), "operation 4"));
	old[1].wire_type = 9;
	CHECK(rw_add(session, (const struct rw_tensor *)(const void *)old, 2, NULL, 2) == -EINVAL);
	CHECK(strstr(rw_error(), "tensor 1 has 5 elements of type 9"));
}

/* A tensor of rows is begun as any other; codecs and kinds of updates are the aggregator's concern. */
static void rows(void)
{
	static const uint64_t shape[] = {3000, 7};
	static float values[3000 * 7];
	uint64_t handle;
	struct rw_parameter table = vector(shape);
	struct rw_op op = {.size = sizeof op, .tensor = TENSORS, .src = values, .dst = values, .kind = RW_BROADCAST};

	table.rows = 3;
	CHECK(rw_register(session, &table, 1) == -EINVAL && strstr(rw_error(), "\"w\": rows is 3, with 1 dimensions"));
	table.rows = RW_SPARSE_STANDARD;
	table.ndim = 0;
	CHECK(rw_register(session, &table, 1) == -EINVAL && strstr(rw_error(), "RW_DENSE for a scalar"));
	table.ndim = 2;
	CHECK(rw_register(session, &table, 1) == 0);
	for (int i = 0; i < 3000 * 7; i++)
		values[i] = (float)(i + (int)info.rank);
	CHECK(rw_submit(session, &op, 1, &handle) == 1);
	CHECK(rw_wait_all(session, &handle, 1, WAIT_MS) == 0);
	for (int i = 0; i < 3000 * 7; i++)
		CHECK(values[i] == (float)i);
	some_rows(values);
}

static uint64_t copied(void)
{
	struct rw_stats stats = {.size = sizeof stats};

	CHECK(rw_stats(session, &stats) == 0);
	return stats.copied_bytes;
}

/* In arenas nothing is copied; elsewhere everything is, on providers that need registered memory. */
static void copies(void)
{
	uint64_t before = copied();

	exchange();
	CHECK(copied() == before);
	for (int t = 0; t < TENSORS; t++) {
		CHECK(rw_free(memory[t]) == 0);
		memory[t] = malloc(sizes[t] * sizeof(float));
	}
	exchange();
	CHECK((copied() > before) == !info.any_memory);
	for (int t = 0; t < TENSORS; t++) {
		void *at;

		free(memory[t]);
		CHECK(rw_alloc(sizes[t] * sizeof(float), &at) == 0);
		memory[t] = at;
	}
}

static void count(void *arg, uint64_t handle, int status)
{
	(void)handle;
	__atomic_add_fetch((int *)arg, status == 0 ? 1 : 1000, __ATOMIC_SEQ_CST);
}

/* Waits one by one, and for callbacks, which come without anybody waiting. */
static void waits(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	uint64_t handles[TENSORS];
	int called = 0, status, left = TENSORS;

	fill((float)(info.rank + 1));
	submit(handles, count, &called);
	while (left > 0) {
		int i = rw_wait_any(session, handles, (uint32_t)left, WAIT_MS, &status);

		CHECK(i >= 0 && i < left && status == 0);
		CHECK(rw_test(session, handles[i]) == 1);
		handles[i] = handles[--left];
	}
	expect(sum_of_ranks());
	fill((float)(info.rank + 1));
	for (int i = 0; __atomic_load_n(&called, __ATOMIC_SEQ_CST) < TENSORS && i < WAIT_MS; i++)
		nanosleep(&pause, NULL);
	submit(handles, count, &called);
	for (int i = 0; __atomic_load_n(&called, __ATOMIC_SEQ_CST) < 2 * TENSORS && i < WAIT_MS; i++)
		nanosleep(&pause, NULL);
	CHECK(called == 2 * TENSORS);
	expect(sum_of_ranks());
}

/* A wait that ends too early loses nothing. */
static void patience(void)
{
	const struct timespec late = {.tv_nsec = 200000000};
	uint64_t handles[TENSORS];
	int status;

	CHECK(rw_barrier(session, "patience") == 0);
	fill((float)(info.rank + 1));
	if (info.rank == 0)
		nanosleep(&late, NULL);
	submit(handles, NULL, NULL);
	if (info.rank != 0) {
		CHECK(rw_wait_any(session, handles, TENSORS, 10, &status) == -ETIMEDOUT);
		CHECK(rw_failure(session, (char[8]){0}, 8) == 0);
		CHECK(rw_submit(session,
				&(struct rw_op){
					.size = sizeof(struct rw_op), .src = memory[0], .dst = memory[0], .kind = RW_PUSHPULL},
				1, handles) == -EBUSY);
		CHECK(strstr(rw_error(), "still being exchanged"));
	}
	CHECK(rw_wait_all(session, handles, TENSORS, WAIT_MS) == 0);
	expect(sum_of_ranks());
}

/* A trace has every operation up to its bound, in the order of submission. */
static void traces(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct rw_traced noted[2 * TENSORS];

	CHECK(rw_traced(session, 0, noted, 1) == -EINVAL && strstr(rw_error(), "rw_trace"));
	CHECK(rw_trace(session, 0) == -EINVAL);
	CHECK(rw_trace(session, TENSORS + 1) == 0 && rw_trace(session, 1) == -EALREADY);
	exchange();
	CHECK(rw_traced(session, 0, noted, 2 * TENSORS) == TENSORS);
	waits();
	CHECK(rw_traced(session, 1, noted, 2 * TENSORS) == TENSORS);
	for (int i = 0; i < TENSORS; i++) {
		CHECK(noted[i].kind == RW_PUSHPULL && noted[i].tensor == (uint32_t)(i + 1) % TENSORS);
		for (int k = 0; !noted[i].ended && k < WAIT_MS; k++) { /* its callback may come after the wait */
			nanosleep(&pause, NULL);
			CHECK(rw_traced(session, (uint32_t)i + 1, &noted[i], 1) == 1);
		}
		CHECK(0 < noted[i].began && noted[i].began < noted[i].ended);
		CHECK(i == 0 || noted[i - 1].began <= noted[i].began);
	}
}

/* Every call refuses in a child, which begins while operations are in flight. The parent goes on. */
static void forks(void)
{
	uint64_t handles[TENSORS];
	int status;
	pid_t pid;

	fill((float)(info.rank + 1));
	submit(handles, NULL, NULL);
	pid = fork();
	if (pid == 0) {
		struct rw_op op = {.size = sizeof op};
		struct rw_step step = {.size = sizeof step};
		struct rw_stats stats = {.size = sizeof stats};
		struct rw_endpoint end = {.size = sizeof end};
		struct rw_connect how = {.size = sizeof how};
		struct rw_parameter parameter = {.size = sizeof parameter};
		struct rw_tensor tensor = {.size = sizeof tensor};
		struct rw_traced noted;
		uint32_t lane = 0;
		char text[128];

		CHECK(rw_submit(session, &op, 1, handles) == RW_EFORKED);
		CHECK(rw_test(session, handles[0]) == RW_EFORKED);
		CHECK(rw_wait_any(session, handles, 1, WAIT_MS, &status) == RW_EFORKED);
		CHECK(rw_wait_all(session, handles, 1, WAIT_MS) == RW_EFORKED);
		CHECK(rw_commit(session, &step, handles) == RW_EFORKED);
		CHECK(rw_failure(session, text, sizeof text) == RW_EFORKED && strstr(text, "forked child"));
		CHECK(rw_stats(session, &stats) == RW_EFORKED);
		CHECK(rw_query(session, &info) == RW_EFORKED);
		CHECK(rw_trace(session, 1) == RW_EFORKED && rw_traced(session, 0, &noted, 1) == RW_EFORKED);
		CHECK(rw_register(session, &parameter, 1) == RW_EFORKED);
		CHECK(rw_barrier(session, "x") == RW_EFORKED);
		CHECK(rw_add(session, &tensor, 1, &lane, 1) == RW_EFORKED);
		CHECK(rw_endpoint(session, 0, &end) == RW_EFORKED && rw_connect(session, &end, 1, &how) == RW_EFORKED);
		CHECK(rw_committed(session, memory[0], memory[1]) == RW_EFORKED);
		CHECK(rw_end_step(session, handles) == RW_EFORKED && rw_step_ended(session, &lane, &status) == RW_EFORKED);
		CHECK(rw_set_policy(session, "asp") == RW_EFORKED && rw_report_loss(session, 1) == RW_EFORKED);
		rw_abort(session, "not heard");
		CHECK(rw_close(session) == RW_EFORKED);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(rw_wait_all(session, handles, TENSORS, WAIT_MS) == 0);
	expect(sum_of_ranks());
}

/* The library's threads block all signals and have its name; the program's handlers stay as they were. */
static void threads(const struct sigaction *before)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int ours = 0;

	while ((task = readdir(tasks))) {
		char path[300], line[128], name[32] = "";
		FILE *f;

		snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		while (fgets(line, sizeof line, f)) {
			unsigned long long blocked;

			sscanf(line, "Name: %31s", name);
			if (sscanf(line, "SigBlk: %llx", &blocked) == 1 && strcmp(name, "rackweave") == 0) {
				ours++;
				CHECK((blocked | 1ull << 31 | 1ull << 32 | 1ull << 8 | 1ull << 18) ==
				      ~0ull); /* not glibc's own two, KILL, STOP */
			}
		}
		fclose(f);
	}
	closedir(tasks);
	CHECK(ours == 1);
	for (int sig = 1; sig < 32; sig++) {
		struct sigaction now;

		if (sigaction(sig, NULL, &now) == 0)
			CHECK(now.sa_handler == before[sig].sa_handler);
	}
}

int main(int argc, char **argv)
{
	static struct sigaction before[32];
	struct rw_job job = {.size = sizeof job, .timeout_ms = WAIT_MS, .provider = argc > 1 ? argv[1] : NULL};
	struct rw_parameter parameters[TENSORS];

	for (int sig = 1; sig < 32; sig++)
		sigaction(sig, NULL, &before[sig]);
	CHECK(rw_abi_version() == RW_ABI_VERSION);
	CHECK(rw_join(&job, &session) == 0);
	CHECK(rw_submit(session, &(struct rw_op){.size = sizeof(struct rw_op)}, 1, &(uint64_t){0}) == -EINVAL &&
	      strstr(rw_error(), "rw_add"));
	for (int t = 0; t < TENSORS; t++) {
		static const char *const names[TENSORS] = {"a", "b", "c"};
		void *at;

		parameters[t] = (struct rw_parameter){.size = sizeof parameters[t],
						      .wire_type = RW_F32,
						      .memory_type = RW_F32,
						      .name = names[t],
						      .shape = &sizes[t],
						      .ndim = 1,
						      .lr_mult = 1,
						      .wd_mult = 1};
		CHECK(rw_alloc(sizes[t] * sizeof(float), &at) == 0);
		memory[t] = at;
	}
	CHECK(rw_register(session, parameters, TENSORS) == 0);
	CHECK(rw_register(session, parameters, 0) == -EINVAL);
	CHECK(rw_query(session, &info) == 0 && info.tensors == TENSORS);
	exchange();
	rows();
	copies();
	waits();
	patience();
	traces();
	forks();
	threads(before);
	CHECK(rw_barrier(session, "end") == 0);
	CHECK(rw_close(session) == 0);
	puts("ok");
	return 0;
}
