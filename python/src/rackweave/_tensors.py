"""What a session exchanges: tensors, and operations on them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Optional, Sequence, Tuple


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as all ranks declare it.

    Attributes:
        name: unique in the session.
        shape: elements in each dimension; empty for a scalar.
        memory: its type in this worker's memory: f32, bf16 or f16.
        wire: its type on the wire; empty: as in memory.
        lr_mult, wd_mult: multiply the session's learning rate and weight decay.
        compress: whether the session's codec, if it has one, shortens its gradients.
    """

    name: str
    shape: Tuple[int, ...]
    memory: str = "f32"
    wire: str = ""
    lr_mult: float = 1.0
    wd_mult: float = 1.0
    compress: bool = True

    @property
    def elems(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation on one tensor; src and dst may be the same.

    Attributes:
        kind: PUSH, PUSHPULL, PULL or BROADCAST of rackweave._lib.
        tensor: its number, from register.
        src: address of the tensor's elements to send; 0 for a pull.
        dst: address for its result; 0 for a push.
        priority: higher goes first.
        owner: what keeps that memory alive.
        hyper: 8 hyper-parameters in the places of a control record, that hold from this push on; None: as they are.
    """

    kind: int
    tensor: int
    src: int = 0
    dst: int = 0
    priority: int = 0
    owner: Any = None
    hyper: Optional[Sequence[float]] = None


def declaration(t: Tensor) -> Dict[str, Any]:
    """Returns a tensor as Register takes it."""
    return {
        "name": t.name,
        "shape": [str(d) for d in t.shape],
        "dtype": t.wire or t.memory,
        "lrMult": t.lr_mult,
        "wdMult": t.wd_mult,
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
