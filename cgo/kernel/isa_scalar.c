#include "ops.h"
#include "vec_scalar.h"
#include "body.h"
#include "coded.h"

const struct rwk_ops rwk_ops_scalar = RWK_TABLE;
