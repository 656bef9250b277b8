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
