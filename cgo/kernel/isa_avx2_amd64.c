#include "ops.h"
#include "vec_avx2.h"
#include "body.h"

const struct rwk_ops rwk_ops_avx2 = RWK_TABLE;
