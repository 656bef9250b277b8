#define WIDTH 8
#include "ops.h"
#include "vec_x86.h"
#include "body.h"
#include "coded.h"

const struct rwk_ops rwk_ops_avx2 = RWK_TABLE;
