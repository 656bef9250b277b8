#define WIDTH 16
#include "ops.h"
#include "vec_x86.h"
#include "body.h"
#include "coded.h"

const struct rwk_ops rwk_ops_avx512 = RWK_TABLE;
