#include "ops.h"
#include "vec_neon.h"
#include "body.h"
#include "coded.h"

const struct rwk_ops rwk_ops_neon = RWK_TABLE;
