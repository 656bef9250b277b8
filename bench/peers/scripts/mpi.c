/*
 * Times MPI_Allreduce (f32, separate send and receive buffers) between processes of one host; rank 0 prints one line
 * of JSON. Usage: mpirun -np N mpi BYTES ITERS WARMUP.
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
	long count; /* elements */
};

static void fail(const char *what, const char *value)
{
	fprintf(stderr, "mpi: %s: %s\n", what, value);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

static void *allocate(size_t count, size_t size)
{
	void *p = malloc(count * size);

	if (!p)
		fail("allocating a buffer", "out of memory");
	return p;
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

static void print_result(const double *times, int iters, long wrong)
{
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	MPI_Get_library_version(library, &length);
	library[strcspn(library, ",\"\n")] = 0;
	printf("{\"version\": \"%s\", \"transport\": \"shared memory\", \"wrong\": %ld, \"times_us\": [", library, wrong);
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
	if (argc != 4)
		fail("usage", "mpi BYTES ITERS WARMUP");
	x.count = atol(argv[1]) / (long)sizeof(float);
	iters = atoi(argv[2]);
	warmup = atoi(argv[3]);
	if (x.count < 1 || x.count > INT_MAX)
		fail("BYTES must be 1 to 2^31-1 elements, and are", argv[1]);
	if (iters < 1 || warmup < 0)
		fail("ITERS must be at least 1 and WARMUP 0; ITERS is", argv[2]);

	x.in = allocate((size_t)x.count, sizeof *x.in);
	x.out = allocate((size_t)x.count, sizeof *x.out);
	times = allocate((size_t)iters, sizeof *times);
	slowest = allocate((size_t)iters, sizeof *slowest);
	for (long i = 0; i < x.count; i++) {
		x.in[i] = input(i, rank);
		x.out[i] = -1;
	}
	for (int i = -warmup; i < iters; i++) {
		double start;

		MPI_Barrier(MPI_COMM_WORLD);
		start = MPI_Wtime();
		MPI_Allreduce(x.in, x.out, (int)x.count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
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
	MPI_Finalize();
	return 0;
}
