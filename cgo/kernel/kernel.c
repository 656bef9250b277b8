/* Picks the instruction set, gives it whole groups or vectors and the scalar kernels the rest. */
#include "ops.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

static const struct rwk_ops *const table[RWK_ISAS] = {
	[RWK_SCALAR] = &rwk_ops_scalar,
#if defined(__x86_64__)
	[RWK_AVX2] = &rwk_ops_avx2,
	[RWK_AVX512] = &rwk_ops_avx512,
#elif defined(__aarch64__)
	[RWK_NEON] = &rwk_ops_neon,
#endif
};

static int supported[RWK_ISAS], best;

static void found(int isa)
{
	supported[isa] = 1;
	best = isa;
}

__attribute__((constructor)) static void detect(void)
{
	found(RWK_SCALAR);
#if defined(__x86_64__)
	unsigned int eax, ebx, ecx, edx;

	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C))
		return;
	found(RWK_AVX2);
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
	    !__builtin_cpu_supports("avx512dq"))
		return;
	found(RWK_AVX512);
	/*
	 * Zen 4 splits 512-bit operations. Its wider vectors halve the time of a chunk that lies in the cache, but run so far
	 * ahead that streams at equal offsets evict each other: from memory AVX2 is 20% faster.
	 */
	if (__builtin_cpu_is("amdfam19h"))
		best = RWK_AVX2;
#elif defined(__aarch64__)
	found(RWK_NEON);
#endif
}

int rwk_best(void)
{
	return best;
}

int rwk_built(int isa)
{
	return isa >= 0 && isa < RWK_ISAS && table[isa];
}

int rwk_supported(int isa)
{
	return rwk_built(isa) && supported[isa];
}

static const struct rwk_ops *ops_of(int isa)
{
	return table[rwk_supported(isa) ? isa : best];
}

static uint64_t whole(uint64_t n, uint32_t unit)
{
	return n - n % unit;
}

void rwk_sum(int isa, void *dst, int dst_type, const uint64_t *src, uint32_t nsrc, int src_type, uint64_t n, int accumulate)
{
	const struct rwk_ops *ops = ops_of(isa);
	struct rwk_sum_args a = {(uintptr_t)dst, src, nsrc, dst_type, src_type, accumulate};
	uint64_t groups = whole(n, ops->group);

	ops->sum(&a, 0, groups);
	rwk_ops_scalar.sum(&a, groups, n);
}

/* Which arrays a rule needs, and the form it takes when its momentum is 0 (0: it needs one always, or has none). */
static const struct rule {
	uint8_t w, states, plain;
} rules[RWK_STEPS] = {
	[RWK_SUM] = {0, 0, 0},
	[RWK_SGD_MXNET] = {1, 1, RWK_SGD_MXNET_PLAIN},
	[RWK_SGD_TORCH] = {1, 1, RWK_SGD_TORCH_PLAIN},
	[RWK_NAG_MXNET] = {1, 1, RWK_SGD_MXNET_PLAIN},
	[RWK_NESTEROV_TORCH] = {1, 1, RWK_SGD_TORCH_PLAIN},
	[RWK_ADAM_MXNET] = {1, 2, 0},
	[RWK_ADAM_TORCH] = {1, 2, 0},
	[RWK_ADAMW_MXNET] = {1, 2, 0},
	[RWK_ADAMW_TORCH] = {1, 2, 0},
	[RWK_ADAGRAD_MXNET] = {1, 1, 0},
	[RWK_ADAGRAD_TORCH] = {1, 1, 0},
	[RWK_RMSPROP_MXNET] = {1, 1, 0},
	[RWK_RMSPROP_TORCH] = {1, 2, RWK_RMSPROP_TORCH_PLAIN},
	[RWK_LAMB] = {1, 2, 0},
	[RWK_LAMB_APPLY] = {1, 2, 0},
	[RWK_SGD_MXNET_PLAIN] = {1, 0, 0},
	[RWK_SGD_TORCH_PLAIN] = {1, 0, 0},
	[RWK_RMSPROP_TORCH_PLAIN] = {1, 1, 0},
};

int rwk_update(int isa, const struct rwk_update *u)
{
	const struct rwk_ops *ops = ops_of(isa);
	uint64_t groups = whole(u->n, ops->group);
	int step = u->rule;

	if (step >= RWK_RULES)
		return -1;
	if (rules[step].plain && u->scalar[RWK_K_MOMENTUM] == 0)
		step = rules[step].plain;
	if (rules[step].w && !u->w)
		return -2;
	for (int i = 0; i < rules[step].states; i++)
		if (!u->state[i])
			return -2;
	ops->update(u, step, 0, groups);
	rwk_ops_scalar.update(u, step, groups, u->n);
	return 0;
}

int rwk_update_batch(int isa, const struct rwk_update *u, uint32_t count, uint32_t *done)
{
	int rc = 0;

	for (*done = 0; *done < count; ++*done) {
		rc = rwk_update(isa, &u[*done]);
		if (rc)
			break;
	}
	return rc;
}

/* Elements before the first cache line of an array, at most n. */
static uint64_t before_line(uint64_t addr, int dtype, uint64_t n)
{
	uint64_t head = (-addr & (RWK_LINE - 1)) / rwk_size(dtype);

	return head < n ? head : n;
}

/* Streaming copies of any type move f32-sized words; what is left over of a 16-bit type is one element. */
static void copy(const struct rwk_ops *ops, char *dst, const char *src, uint64_t bytes, int streaming)
{
	uint64_t head = -(uintptr_t)dst & (RWK_LINE - 1);

	if (!streaming || bytes < head + RWK_LINE) {
		memcpy(dst, src, bytes);
		return;
	}
	uint64_t words = whole((bytes - head) / sizeof(float), ops->width), body = words * sizeof(float);

	memcpy(dst, src, head);
	ops->stream((uintptr_t)dst + head, RWK_F32, (uintptr_t)src + head, RWK_F32, 0, words);
	memcpy(dst + head + body, src + head + body, bytes - head - body);
}

void rwk_convert(int isa, void *dst, int dst_type, const void *src, int src_type, uint64_t n, int streaming)
{
	const struct rwk_ops *ops = ops_of(isa);
	uint64_t d = (uintptr_t)dst, s = (uintptr_t)src;

	if (dst_type == src_type) {
		copy(ops, dst, src, n * rwk_size(src_type), streaming);
		return;
	}
	uint64_t head = streaming ? before_line(d, dst_type, n) : 0;
	uint64_t body = head + whole(n - head, ops->width);

	rwk_ops_scalar.convert(d, dst_type, s, src_type, 0, head);
	(streaming ? ops->stream : ops->convert)(d, dst_type, s, src_type, head, body);
	rwk_ops_scalar.convert(d, dst_type, s, src_type, body, n);
}

double rwk_sumsq(int isa, const float *x, uint64_t n)
{
	double part[16] = {0};
	uint64_t body = n - n % 16;

	ops_of(isa)->sumsq(part, x, body);
	for (uint64_t i = body; i < n; i++)
		part[i % 16] += (double)x[i] * x[i];
	for (int half = 8; half > 0; half /= 2)
		for (int j = 0; j < half; j++)
			part[j] += part[j + half];
	return part[0];
}

void rwk_probe(int isa, const struct rwk_probe *p)
{
	ops_of(isa)->probe(p);
}
