"""Gradients on their way: started by hooks in the middle of backward, awaited at its end."""

from __future__ import annotations

import math
import sys
import time
import warnings
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Set, Tuple

import torch

from .. import _lib, _trace
from .._session import Handle, Op, Session, Tensor
from ..errors import ConfigError, NonFiniteError, TensorError
from . import _arena
from ._cuda import Stage
from ._rows import Table

NONFINITE = ("ignore", "count", "refuse")

_TOGETHER = 256 << 10  # bytes of small gradients that wait for each other, because each submission costs 0.1 ms


_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__


def enclosing_node() -> Any:
    """Returns the node in whose backward another backward runs, which calls this, as a reentrant checkpoint's does; else None."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_locals["self"] if frame is not None else None


class Exchange:
    """The tensors of one session, and what of them is under way."""

    def __init__(self, session: Session, nonfinite: str = "ignore") -> None:
        if nonfinite not in NONFINITE:
            raise ConfigError(f"nonfinite is {nonfinite!r}: use one of {', '.join(NONFINITE)}")
        self.session, self.nonfinite = session, nonfinite
        self.nonfinite_count = 0
        self.tables: Dict[int, Table] = {}  # of the sparse tensors
        self._stages: Dict[int, Stage] = {}
        self._staged: List[Tuple[Stage, Op]] = []  # on their way from a GPU, oldest first
        self._ready: List[Op] = []  # to submit together
        self._ready_bytes = 0
        self._handles: List[Handle] = []
        self._landing: List[Stage] = []
        self._then: List[Callable[[], None]] = []
        self._active: Set[int] = set()
        self._error: Optional[BaseException] = None
        self._began = 0  # of this backward's hooks, in nanoseconds

    def register(
        self,
        named: Sequence[Tuple[str, torch.Tensor]],
        wire: str = "",
        multipliers: Optional[Dict[str, Tuple[float, float]]] = None,
        sparse: Collection[int] = (),
        standard: bool = False,
    ) -> List[int]:
        """Declares tensors; returns their numbers. multipliers are of learning rate and weight decay, by name.

        sparse are the identities of sparse tensors; with standard, their rows without a gradient take one of 0.
        """
        tensors = []
        for name, t in named:
            dtype = _arena.type_of(t, name)
            lr, wd = (multipliers or {}).get(name, (1.0, 1.0))
            # Elements travel in the order of memory, so ranks must agree on it.
            label = name if t.is_contiguous() else f"{name} of strides {tuple(t.stride())}"
            if id(t) in sparse and not t.is_contiguous():
                raise TensorError(f"parameter {label} has sparse gradients, whose rows are apart in it: make it contiguous")
            rows = {"sparse": True, "standard": standard} if id(t) in sparse else {}
            tensors.append(Tensor(label, tuple(t.shape), dtype, wire, lr, wd, **rows))
        numbers = self.session.register(tensors)
        self.tables.update((n, Table(self.session, n, t)) for n, (_, t) in zip(numbers, named) if id(t) in sparse)
        return numbers

    def start(
        self,
        kind: int,
        items: Sequence[Tuple[int, torch.Tensor]],
        then: Optional[Callable[[], None]] = None,
        gather: bool = False,
    ) -> None:
        """Starts operations in place on dense tensors, the first with the highest priority; drain calls then when all are done.

        With gather, few bytes wait for more of this backward, or its end.
        """
        if any(number in self._active for number, _ in items):
            self.drain()  # of a backward that an error ended
        if self.nonfinite != "ignore" and kind in (_lib.PUSH, _lib.PUSHPULL):
            self._check(items)
        for number, t in items:
            self._active.add(number)
            if t.is_cuda:
                stage = self._stages.setdefault(number, Stage(t))
                host = stage.lift(t)
                self._staged.append((stage, Op(kind, number, host, host, -number, t)))
            else:
                at = t.data_ptr()
                self._ready.append(Op(kind, number, at, at, -number, t))
                self._ready_bytes += t.numel() * t.element_size()
        if not gather or self._ready_bytes >= _TOGETHER:
            self._submit()
        if then is not None:
            self._then.append(then)
        self._launch(wait=False)

    def start_rows(self, kind: int, number: int, grad: torch.Tensor, then: Optional[Callable[[torch.Tensor], None]]) -> None:
        """Starts to push a sparse gradient; PUSHPULL: drain calls then with the sum."""
        if number in self._active:
            self.drain()
        grad = grad.coalesce()
        if self.nonfinite != "ignore":
            self._check([(number, grad._values())])
        self._active.add(number)
        table = self.tables[number]
        self._handles.append(table.start(kind, grad))
        if kind == _lib.PUSHPULL and then is not None:
            done = then
            self._then.append(lambda: done(table.sum()))

    def pull_rows(self, number: int, ids: torch.Tensor) -> None:
        """Starts to get rows of a parameter, which are in their places when drain returns."""
        self._active.add(number)
        self._handles.append(self.tables[number].pull(ids))
        self._then.append(self.tables[number].land)

    def drain(self) -> None:
        """Waits until all that was started is done; raises what in_backward kept."""
        self.check()
        self._launch(wait=True)
        handles, self._handles = self._handles, []
        then, self._then = self._then, []
        landing, self._landing = self._landing, []
        self._active.clear()
        for handle in handles:
            handle.wait()
        for stage in landing:
            stage.land()
        for f in then:
            f()

    def in_backward(self, start: Callable[[], None], end: Callable[[], None]) -> None:
        """Calls start from a hook in the middle of backward, and end when all gradients are there.

        An error of start is kept for check: a backward that a hook's error cuts short makes torch 1.13 hang when the process ends.
        """
        self._began = self._began or time.monotonic_ns()
        if self._error is None:
            try:
                start()
            except BaseException as e:
                self._error = e
        try:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_backward(end))
        except RuntimeError:  # not in a backward
            self.check()
            raise

    def _end_backward(self, end: Callable[[], None]) -> None:
        if not self._began:
            return  # each hook's callback is called, and the first has done it
        began, self._began = self._began, 0
        if self._error is None:
            self._submit()
        rank = self.session.rank
        _trace.span("backward, from its first gradient", rank, began)
        with _trace.timed("wait for gradients", rank):
            end()

    def check(self) -> None:
        """Raises the error that in_backward kept, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _submit(self) -> None:
        ops, self._ready, self._ready_bytes = self._ready, [], 0
        if ops:
            self._handles.append(self.session.submit(ops))

    def _launch(self, wait: bool) -> None:
        """Submits what has arrived from GPUs; with wait all of it, and what was to be submitted together with more."""
        if wait:
            self._submit()
        ops = []
        while self._staged and (wait or self._staged[0][0].lifted()):
            stage, op = self._staged.pop(0)
            stage.wait()
            ops.append(op)
            self._landing.append(stage)
        if ops:
            self._handles.append(self.session.submit(ops))

    def _check(self, items: Sequence[Tuple[int, torch.Tensor]]) -> None:
        """Counts gradients that hold NaN or infinity, or refuses them."""
        for number, t in items:
            # The sum tells most, in one fast pass; it can itself be too large for the type.
            if not t.is_cuda and not math.isfinite(t.sum()) and not torch.isfinite(t).all():
                self.nonfinite_count += 1
                if self.nonfinite_count == 1 and self.nonfinite == "count":
                    name, rank = self.session.names[number], self.session.rank
                    warnings.warn(
                        f"the gradient of {name!r} at rank {rank} holds NaN or infinity; rackweave.torch.stats counts them"
                    )
                if self.nonfinite == "refuse":
                    error = NonFiniteError(
                        f"the gradient of {self.session.names[number]!r} at rank {self.session.rank} holds NaN or infinity"
                    )
                    self.session.fail(error)
                    raise error
