"""What a session exchanges: tensors, and operations on them."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _lib
from ._buffers import TYPES
from .errors import TensorError

_MOST_FREQUENT = 1e30  # so that a chunk's sum is finite in f32


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as all ranks declare it.

    Attributes:
        name: unique in the session.
        shape: elements in each dimension; empty for a scalar.
        memory: its type in this worker's memory: f32, bf16 or f16.
        wire: its type on the wire; empty: as in memory.
        lr_mult, wd_mult: multiply the session's learning rate and weight decay.
        compress: whether the session's codec, if it has one, shortens its gradients; never those of a sparse tensor.
        sparse: gradients may have some of the rows, by the first dimension.
        standard: of a sparse tensor: rows without a gradient are updated with a gradient of 0; otherwise they stay as they are.
        frequencies: of each row of a sparse tensor: in how many steps a worker touches it, in a unit common to the session's
            tensors; they place the rows so that lanes are touched alike; by default lanes have as many rows.
    """

    name: str
    shape: Tuple[int, ...]
    memory: str = "f32"
    wire: str = ""
    lr_mult: float = 1.0
    wd_mult: float = 1.0
    compress: bool = True
    sparse: bool = False
    standard: bool = False
    frequencies: Optional[Sequence[float]] = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def elems(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """The number of elements in a row of a sparse tensor, or 0."""
        return math.prod(self.shape[1:]) if self.sparse and self.shape else 0


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation on one tensor; src and dst may be the same, but for a pushpull of rows unless these are all rows.

    Attributes:
        kind: PUSH, PUSHPULL, PULL or BROADCAST of rackweave._lib.
        tensor: its number, from register.
        src: address of the tensor's elements to send; 0 for a pull.
        dst: address for its result; 0 for a push.
        priority: higher goes first.
        owner: what keeps that memory alive.
        hyper: 8 hyper-parameters in the places of a control record, that hold from this push on; None: as they are.
        ids: address of the int64 numbers of a sparse tensor's rows that the operation is on; 0: on the whole tensor.
        nids: how many rows these are.
        union: address of int64 for each of the tensor's rows, which gets those that a pushpull has written; 0: nowhere.
        nunion: address of a uint64 that gets their number; 0: nowhere.
    """

    kind: int
    tensor: int
    src: int = 0
    dst: int = 0
    priority: int = 0
    owner: Any = None
    hyper: Optional[Sequence[float]] = None
    ids: int = 0
    nids: int = 0
    union: int = 0
    nunion: int = 0

    def put(self, o: _lib.Op) -> None:
        """Writes the operation as the native library takes it."""
        o.size, o.tensor, o.src, o.dst = ctypes.sizeof(o), self.tensor, self.src, self.dst
        o.priority, o.kind = self.priority, self.kind
        o.ids, o.nids, o.union_ids, o.nunion = self.ids, self.nids, self.union, self.nunion
        if self.hyper is not None:
            if len(self.hyper) != _lib.HYPERS:
                raise TensorError(f"tensor {self.tensor} has {len(self.hyper)} hyper-parameters: give all {_lib.HYPERS}, or None")
            o.hyper = (ctypes.c_float * _lib.HYPERS)(*self.hyper)


def declaration(t: Tensor, chunk_bytes: int) -> Dict[str, Any]:
    """Returns a tensor as Register takes it."""
    touches: List[float] = []
    if t.frequencies is not None:
        given = [float(f) for f in t.frequencies]
        if not t.width or len(given) != t.shape[0]:
            raise TensorError(
                f"tensor {t.name!r} of shape {t.shape} has {len(given)} frequencies of rows: give one for each row of a sparse "
                "tensor, or none"
            )
        for i, f in enumerate(given):
            if not 0 <= f <= _MOST_FREQUENT:
                raise TensorError(f"tensor {t.name!r}: row {i} has the frequency {f}: use numbers from 0 to {_MOST_FREQUENT:g}")
        rows = max(chunk_bytes // (TYPES[t.wire or t.memory][0] * t.width), 1)
        touches = [math.fsum(given[first : first + rows]) for first in range(0, len(given), rows)]
    return {
        "name": t.name,
        "shape": [str(d) for d in t.shape],
        "dtype": t.wire or t.memory,
        "lrMult": t.lr_mult,
        "wdMult": t.wd_mult,
        "sparse": t.sparse,
        "standard": t.standard,
        "chunkTouches": touches,
    }


class Handle:
    """Operations that were started together."""

    def __init__(self, session: Any, raw: Any, tensors: Sequence[int]) -> None:
        self._session, self._raw, self._tensors = session, raw, tensors

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until all are done: timeout seconds, or the session's timeout. Ctrl-C ends the wait."""
        self._session._wait(self._raw, self._tensors, timeout)

    def done(self) -> bool:
        """Tells without waiting whether all are done."""
        return self._session._done(self._raw, self._tensors)
