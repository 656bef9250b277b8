"""RackWeave: gradients of all workers summed, and optimizers run, by an aggregator at the top of the rack.

    import rackweave

    rackweave.init()                               # rank and address from the launcher's environment
    rackweave.broadcast(weights, "weights")        # everyone has rank 0's
    rackweave.push_pull(gradient, "gradient", average=True)

Tensors are numpy arrays, or anything with DLPack, __array_interface__ or the buffer protocol, dense, of float32, bfloat16 or
float16. rackweave.rows exchanges rows of a session's sparse tensors. For PyTorch see rackweave.torch, for MXNet rackweave.mxnet.
"""

from __future__ import annotations

from . import _rows as rows
from ._buffers import Buffer, as_buffer
from ._collectives import (
    Average,
    Max,
    Min,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    average_metrics,
    broadcast_object,
    join,
    local_rank,
    local_size,
)
from ._evaluate import evaluate
from ._lib import NativeError
from ._session import Handle, Op, Session, Tensor
from ._world import World, alloc, barrier, broadcast, init, is_initialized, push_pull, rank, shutdown, stats, world, world_size
from .errors import (
    ClosedError,
    ConfigError,
    Error,
    ForkedError,
    JobFailedError,
    LibraryError,
    NonFiniteError,
    OutOfRangeError,
    RefusedError,
    ServerLostError,
    TensorError,
    WaitTimeoutError,
)

size = world_size

__version__ = "0.1.0"

__all__ = [
    "Average",
    "Buffer",
    "ClosedError",
    "ConfigError",
    "Error",
    "ForkedError",
    "Handle",
    "JobFailedError",
    "LibraryError",
    "Max",
    "Min",
    "NativeError",
    "NonFiniteError",
    "Op",
    "OutOfRangeError",
    "RefusedError",
    "ServerLostError",
    "Session",
    "Sum",
    "Tensor",
    "TensorError",
    "WaitTimeoutError",
    "World",
    "allgather",
    "allgather_object",
    "alloc",
    "allreduce",
    "as_buffer",
    "average_metrics",
    "barrier",
    "broadcast",
    "broadcast_object",
    "evaluate",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "rows",
    "shutdown",
    "size",
    "stats",
    "world",
    "world_size",
]
