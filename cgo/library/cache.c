/* How much of the last-level cache this process can count on. */
#define _GNU_SOURCE
#include "library.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>

/* What a CPU can count on of a cache that it shares with others. Package numa says why, and also tells cores of several CPUs. */
#define CPU_SHARE ((uint64_t)4 << 20)

/* Returns the bytes of the cache that a CPU uses, or UINT64_MAX if the machine does not say. */
static uint64_t size_of(int cpu)
{
	uint64_t kib, bytes = UINT64_MAX;
	char path[64];
	FILE *f;

	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/size", cpu);
	f = fopen(path, "re");
	if (!f)
		return bytes;
	if (fscanf(f, "%" SCNu64 "K", &kib) == 1 && kib)
		bytes = kib << 10;
	fclose(f);
	return bytes;
}

uint64_t last_level_cache(void)
{
	uint64_t share, size;
	cpu_set_t allowed;
	int cpu = 0;

	if (sched_getaffinity(0, sizeof allowed, &allowed))
		return CPU_SHARE;
	while (!CPU_ISSET((size_t)cpu, &allowed))
		cpu++;
	share = CPU_SHARE * (uint64_t)CPU_COUNT(&allowed);
	size = size_of(cpu);
	return size < share ? size : share;
}
