/*
 * Times MPI_Allreduce (f32, separate send and receive buffers) between processes of one host; rank 0 prints one line
 * of JSON. Usage: mpirun -np N mpi BYTES ITERS WARMUP [TENSORS], TENSORS being a file with the bytes of a tensor per
 * line: one operation per tensor instead of one flat buffer.
 *
 * Every iteration meets at a barrier and is timed by each rank for itself; the slowest rank's time is the iteration's.
 * The last iteration's sums are compared with what they must be, element by element: the inputs are small integers, so
 * any order of adding gives the same bits.
 */
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

struct exchange {
	float *in, *out;
	long count;   /* elements in all */
	int *lengths; /* elements of each operation */
	int operations;
};

static void fail(const char *what, const char *value)
{
	fprintf(stderr, "mpi: %s: %s\n", what, value);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

static void *allocate(void *old, size_t count, size_t size)
{
	void *p = realloc(old, count * size);

	if (!p)
		fail("allocating a buffer", "out of memory");
	return p;
}

static void read_tensors(struct exchange *x, const char *path)
{
	FILE *f = fopen(path, "r");
	long bytes, sum = 0;
	int room = 0;

	if (!f)
		fail("opening the list of tensors", path);
	while (fscanf(f, "%ld", &bytes) == 1) {
		if (x->operations == room) {
			room = room ? 2 * room : 64;
			x->lengths = allocate(x->lengths, (size_t)room, sizeof *x->lengths);
		}
		x->lengths[x->operations++] = (int)(bytes / (long)sizeof(float));
		sum += bytes / (long)sizeof(float);
	}
	fclose(f);
	if (sum != x->count)
		fail("the tensors' bytes do not add up to BYTES", path);
}

static void one_operation(struct exchange *x)
{
	x->lengths = allocate(NULL, 1, sizeof *x->lengths);
	x->lengths[0] = (int)x->count;
	x->operations = 1;
}

static void reduce(const struct exchange *x)
{
	long at = 0;

	for (int i = 0; i < x->operations; at += x->lengths[i++])
		MPI_Allreduce(x->in + at, x->out + at, x->lengths[i], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static float input(long index, int rank)
{
	return (float)((index + rank) % 4);
}

static long count_wrong(const struct exchange *x, int ranks)
{
	long wrong = 0;

	for (long i = 0; i < x->count; i++) {
		float want = 0;

		for (int r = 0; r < ranks; r++)
			want += input(i, r);
		wrong += x->out[i] != want;
	}
	return wrong;
}

/* The label of an enumerated control variable, as it is after start-up; -1: there is no such variable. */
static int control(const char *name, char *label, int room)
{
	int index, verbosity, binding, scope, count, items, raw, item, described = 0, named = 0;
	MPI_T_cvar_handle handle;
	MPI_Datatype type;
	MPI_T_enum labels;

	if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
	    MPI_T_cvar_get_info(index, NULL, &named, &verbosity, &type, &labels, NULL, &described, &binding, &scope) !=
		    MPI_SUCCESS ||
	    type != MPI_INT || labels == MPI_T_ENUM_NULL || MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
		return -1;
	MPI_T_cvar_read(handle, &raw);
	MPI_T_cvar_handle_free(&handle);
	named = 0;
	MPI_T_enum_get_info(labels, &items, NULL, &named);
	for (int i = 0; i < items; i++) {
		int length = room;

		if (MPI_T_enum_get_item(labels, i, &item, label, &length) == MPI_SUCCESS && item == raw)
			return 0;
	}
	return -1;
}

/*
 * How Open MPI moves large messages on this host: vader, its shared-memory transport, falls back to two copies by itself
 * where the kernel does not let it read another process's memory (CMA). Open MPI 5 has renamed it and does not tell.
 */
static void describe_transport(char *text, size_t room)
{
	char label[64];
	int provided;

	snprintf(text, room, "shared memory");
	if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
		return;
	if (control("btl_vader_single_copy_mechanism", label, sizeof label) == 0)
		snprintf(text, room, "btl vader, single copy: %s", label);
	MPI_T_finalize();
}

static void print_result(const double *times, int iters, long wrong)
{
	char library[MPI_MAX_LIBRARY_VERSION_STRING], transport[128];
	int length;

	MPI_Get_library_version(library, &length);
	library[strcspn(library, ",\"\n")] = 0;
	describe_transport(transport, sizeof transport);
	printf("{\"version\": \"%s\", \"transport\": \"%s\", \"wrong\": %ld, \"times_us\": [", library, transport, wrong);
	for (int i = 0; i < iters; i++)
		printf("%s%.3f", i ? ", " : "", times[i]);
	printf("]}\n");
}

int main(int argc, char **argv)
{
	struct exchange x = {0};
	int rank, ranks, iters, warmup;
	double *times, *slowest;
	long wrong, wrong_of_all;

	/* mpirun puts each rank into a process group of its own: killing mpirun's would leave them behind. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 4 || argc > 5)
		fail("usage", "mpi BYTES ITERS WARMUP [TENSORS]");
	x.count = atol(argv[1]) / (long)sizeof(float);
	iters = atoi(argv[2]);
	warmup = atoi(argv[3]);
	if (x.count < 1 || x.count > INT_MAX)
		fail("BYTES must be 1 to 2^31-1 elements, and are", argv[1]);
	if (iters < 1 || warmup < 0)
		fail("ITERS must be at least 1 and WARMUP 0; ITERS is", argv[2]);
	if (argc == 5)
		read_tensors(&x, argv[4]);
	else
		one_operation(&x);

	x.in = allocate(NULL, (size_t)x.count, sizeof *x.in);
	x.out = allocate(NULL, (size_t)x.count, sizeof *x.out);
	times = allocate(NULL, (size_t)iters, sizeof *times);
	slowest = allocate(NULL, (size_t)iters, sizeof *slowest);
	for (long i = 0; i < x.count; i++) {
		x.in[i] = input(i, rank);
		x.out[i] = -1;
	}
	for (int i = -warmup; i < iters; i++) {
		double start;

		MPI_Barrier(MPI_COMM_WORLD);
		start = MPI_Wtime();
		reduce(&x);
		if (i >= 0)
			times[i] = (MPI_Wtime() - start) * 1e6;
	}
	wrong = count_wrong(&x, ranks);
	MPI_Reduce(times, slowest, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(&wrong, &wrong_of_all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		print_result(slowest, iters, wrong_of_all);
	free(times);
	free(slowest);
	free(x.in);
	free(x.out);
	free(x.lengths);
	MPI_Finalize();
	return 0;
}
