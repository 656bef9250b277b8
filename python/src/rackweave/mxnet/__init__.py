"""RackWeave for MXNet 1.9: a kvstore.

    import rackweave.mxnet                          # before a kvstore is made

    gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_sync_rackweave")
    module.fit(data, kvstore="dist_sync_rackweave", ...)

It does what dist_sync does: values are summed over all workers, so that a step is called with the batch size of all of them.
"dist_async_rackweave" does what dist_async does: each worker's gradient updates the weights when it comes.
Parameters and gradients are made in memory that the aggregator reads and writes in place; import this module before they are made.
"""

from __future__ import annotations

import numpy as _np

if not hasattr(_np, "bool"):
    _np.bool = _np.bool_  # MXNet 1.9.1 uses the name, which numpy 1.24 took away

import mxnet as _mx

from ..errors import LibraryError as _LibraryError

if not (1, 5) <= tuple(int(x) for x in _mx.__version__.split(".")[:2]) < (2, 0):
    raise _LibraryError(f"MXNet {_mx.__version__} is not supported: use mxnet==1.9.1")

from . import _arena, _frontends
from ._dist_async import RackWeaveAsync
from ._frontends import detach
from ._store import RackWeave

for _name in ("rackweave", "dist_rackweave", "dist_sync_rackweave", "dist_device_sync_rackweave"):
    _mx.kvstore.KVStoreBase.kv_registry[_name] = RackWeave
for _name in ("rackweave_async", "dist_async_rackweave", "dist_device_async_rackweave"):
    _mx.kvstore.KVStoreBase.kv_registry[_name] = RackWeaveAsync
_arena.install()
_frontends.install()

__all__ = ["RackWeave", "RackWeaveAsync", "detach"]
