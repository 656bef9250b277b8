/*
 * How much of the last-level cache this process can count on. Package numa has the rule and its reasons; a test holds both to the
 * same answer.
 */
#define _GNU_SOURCE
#include "library.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

/* What a core can count on of a cache that it shares with others. */
#define CORE_SHARE ((uint64_t)4 << 20)

static int is_virtual(void)
{
#ifdef __x86_64__
	unsigned eax, ebx, ecx, edx;

	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx >> 31;
#else
	return 0; /* such a CPU does not tell */
#endif
}

static int read_line(int cpu, const char *file, char *line, int cap)
{
	char path[128];
	FILE *f;
	int ok;

	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, file);
	f = fopen(path, "re");
	if (!f)
		return 0;
	ok = fgets(line, cap, f) != NULL;
	fclose(f);
	return ok;
}

/* Reads a set of CPUs such as 0-3,8; a set that says nothing is alone. */
static void read_cpus(int cpu, const char *file, cpu_set_t *cpus)
{
	char line[1024];

	CPU_ZERO(cpus);
	if (!read_line(cpu, file, line, sizeof line))
		line[0] = 0;
	for (char *at = line; *at >= '0' && *at <= '9';) {
		long first = strtol(at, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : first;

		for (; first <= last && first < CPU_SETSIZE; first++)
			CPU_SET((size_t)first, cpus);
		at += *at == ',';
	}
}

static uint64_t count_cores(cpu_set_t cpus)
{
	uint64_t n = 0;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		cpu_set_t siblings;

		if (!CPU_ISSET((size_t)cpu, &cpus))
			continue;
		n++;
		read_cpus(cpu, "topology/thread_siblings_list", &siblings);
		CPU_AND(&siblings, &siblings, &cpus);
		CPU_XOR(&cpus, &cpus, &siblings);
	}
	return n ? n : 1;
}

/* Returns the bytes of the cache that a CPU uses which are there for the process, or 0 if the machine does not say. */
static uint64_t share_of(int cpu, const cpu_set_t *allowed)
{
	char line[32];
	cpu_set_t users, own;
	uint64_t bytes, most;

	if (!read_line(cpu, "cache/index3/size", line, sizeof line))
		return 0;
	bytes = strtoull(line, NULL, 10) << 10;
	read_cpus(cpu, "cache/index3/shared_cpu_list", &users);
	if (CPU_COUNT(&users) == 0)
		users = *allowed;
	CPU_AND(&own, &users, allowed);
	if (!is_virtual() && CPU_EQUAL(&own, &users))
		return bytes;
	most = CORE_SHARE * count_cores(own);
	return bytes < most ? bytes : most;
}

uint64_t last_level_cache(void)
{
	uint64_t largest = 0;
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof allowed, &allowed))
		return CORE_SHARE;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		uint64_t share = CPU_ISSET((size_t)cpu, &allowed) ? share_of(cpu, &allowed) : 0;

		if (share > largest)
			largest = share;
	}
	return largest ? largest : CORE_SHARE * count_cores(allowed);
}
