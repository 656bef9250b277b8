/* What the test programs share. */
#include "include/rackweave.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                                           \
	do {                                                                                                                       \
		if (!(condition)) {                                                                                                \
			printf("%s:%d: %s does not hold: %s\n", __FILE__, __LINE__, #condition, rw_error());                       \
			exit(1);                                                                                                   \
		}                                                                                                                  \
	} while (0)

/* The tensor w, a vector of f32. */
static inline struct rw_parameter vector(const uint64_t *elems)
{
	return (struct rw_parameter){.size = sizeof(struct rw_parameter),
				     .wire_type = RW_F32,
				     .memory_type = RW_F32,
				     .name = "w",
				     .shape = elems,
				     .ndim = 1,
				     .lr_mult = 1,
				     .wd_mult = 1};
}
