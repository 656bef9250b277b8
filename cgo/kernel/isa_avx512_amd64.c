#include "ops.h"
#include "vec_avx512.h"
#include "body.h"

const struct rwk_ops rwk_ops_avx512 = RWK_TABLE;
