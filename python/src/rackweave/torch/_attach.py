"""Gradients of any model exchanged as backward makes them, by hooks on its parameters."""

from __future__ import annotations

import contextlib
import numbers
import weakref
from typing import Any, Dict, Iterator, List, Optional

import torch

from .. import _lib
from .._session import Tensor
from .._world import world
from ..errors import ConfigError, Error
from . import _arena
from ._exchange import Exchange, enclosing_node
from ._fused import Fused
from ._refusals import attached, check_max_norm, check_optimizer, exchanged
from ._rows import check_layout, sparse_of
from ._state import BeforeForward, Buffers, broadcast_frozen, broadcast_parameters


def attach(
    model: torch.nn.Module,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    fused: bool = False,
    broadcast_buffers: bool = True,
    find_unused_parameters: bool = False,
    wire: str = "",
    nonfinite: str = "count",
    scaler: Any = None,
    compress: Optional[str] = None,
) -> "Attached":
    """Makes backward exchange the gradients of a model's parameters. All ranks get rank 0's parameters and buffers first.

    By default p.grad holds the average over the ranks when backward returns, so clipping, GradScaler, schedulers and any
    optimizer go on as they are. With fused the optimizer runs at the aggregator: optimizer.step() sends no gradient, it commits
    those that backward pushed, and gets the new parameters; p.grad holds this rank's own gradient, so clip with
    Attached.clip_grad_norm_, and name the GradScaler, if there is one. What the aggregator has no rule for is refused.

    Args:
        optimizer: needed for fused; may be left out otherwise.
        broadcast_buffers: gives all ranks rank 0's buffers before every forward in training, as DistributedDataParallel does.
        find_unused_parameters: exchanges zeros for parameters that this rank's backward left out and another's did not. Where all
            left one out, it has no gradient, and no optimizer moves it.
        wire: the gradients' type on the wire, f32, bf16 or f16; empty: their own.
        nonfinite: what to do about gradients with NaN or infinity: ignore, count or refuse, which fails the job with an error
            that names tensor and rank.
        scaler: fused: the torch.amp.GradScaler that scales the loss. A step in which any rank's gradient overflows is left out at
            all ranks, and their scales stay the same.
        compress: the codecs of gradients and answers, as of ddp.
    """
    return Attached(model, optimizer, fused, broadcast_buffers, find_unused_parameters, wire, nonfinite, scaler, compress)


class _Slot:
    """A parameter, and the place of its gradient."""

    def __init__(self, name: str, parameter: torch.Tensor, sparse: bool) -> None:
        self.name, self.parameter, self.sparse = name, parameter, sparse
        self.number, self.dtype, self.device = -1, parameter.dtype, parameter.device
        self.place = _arena.empty_like(parameter) if not parameter.is_cuda and not sparse else None
        self.started = False  # in this backward, or fused in this step

    def settle(self) -> torch.Tensor:
        """Returns the gradient, moved to its place if it is elsewhere."""
        grad = self.parameter.grad
        assert grad is not None
        if self.sparse:
            self.parameter.grad = grad = grad.coalesce()
        if self.place is None:
            return grad
        if grad.data_ptr() != self.place.data_ptr():
            with torch.no_grad():
                self.place.copy_(grad)
            self.parameter.grad = self.place
        return self.place


class Attached:
    """What attach returns: a model whose gradients are exchanged."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer],
        fused: bool,
        broadcast_buffers: bool,
        find_unused: bool,
        wire: str,
        nonfinite: str,
        scaler: Any,
        compress: Optional[str],
    ) -> None:
        named = exchanged(model)
        if fused:
            check_max_norm(model)
        if optimizer is not None:
            check_optimizer(optimizer, named)
        if fused and optimizer is None:
            raise ConfigError("fused needs the optimizer: call attach(model, optimizer, fused=True)")
        if scaler is not None and not hasattr(scaler, "is_enabled"):
            raise ConfigError(f"scaler is of type {type(scaler).__name__}: give a torch.amp.GradScaler")
        if scaler is not None and (not fused or nonfinite == "refuse"):
            raise ConfigError("scaler is for fused=True, and not with nonfinite='refuse', because scales overflow: leave one out")
        self._sync, self._find_unused = True, find_unused
        w = world()
        sparse = sparse_of(model)
        self._fused = Fused(optimizer, named, scaler, sparse) if fused and optimizer is not None else None
        if self._fused is None:
            session = w.session(hyper={"scale": 1 / w.world_size}, compress=compress)
        else:
            session = w.session(mode="two-phase", optimizer=self._fused.rule, hyper=self._fused.hyper, compress=compress)
        # A scaler writes gradients, which are sent from where they lie, before the step.
        self._completed_by_step = self._fused is not None and self._fused.scaler is None
        self._exchange = Exchange(session, nonfinite)
        self._slots: List[_Slot] = [_Slot(name, p, id(p) in sparse) for name, p in named]
        # What no step updates: an evaluator would wait for it. Flags need answers, which a two-phase session lacks, and bits.
        apart = self._fused is not None or (find_unused and session.compress != "none")
        self._aside = Exchange(w.session(compress="")) if apart else self._exchange
        multipliers, standard = (self._fused.multipliers, self._fused.standard) if self._fused else (None, False)
        numbers = self._exchange.register(named, wire, multipliers, sparse, standard)
        for slot, number in zip(self._slots, numbers):
            slot.number = number
        if self._fused:
            self._fused.attach(self._exchange, self._slots, self._complete if self._completed_by_step else lambda: None)
            if self._fused.lazy:
                self._fused.mark(Exchange(self._aside.session))
            self._fused.broadcast()
        else:
            broadcast_parameters(self._exchange, numbers, [p for _, p in named])
        broadcast_frozen(self._aside, model)
        self._buffers = Buffers(self._aside, model)
        self._buffers.broadcast()
        attached.update((id(p), weakref.ref(p)) for _, p in named)
        self._hooks: List[Any] = []
        self._broadcast_buffers = broadcast_buffers
        self._hooks.append(model.register_forward_pre_hook(BeforeForward(self._before_forward)))
        if find_unused:
            self._flags = torch.zeros(len(named))
            self._flags_number = self._aside.session.register([Tensor("gradients that are there", (len(named),))])[0]
        self._nodes: List[Any] = []  # torch keeps a hook only as long as its node
        for slot in self._slots:
            self._hook(slot)

    def _hook(self, slot: _Slot) -> None:
        # Python's collector does not look into a parameter's hooks, so they must not keep what leads back to it.
        weak, weak_slot, name = weakref.ref(self), weakref.ref(slot), slot.name

        def accumulated(*_: Any) -> None:
            attached, slot = weak(), weak_slot()
            if attached is None or slot is None:
                raise ConfigError(f"the attached model of parameter {name!r} is gone: keep it, or call detach() before")
            attached._accumulated(slot)

        p = slot.parameter
        if hasattr(p, "register_post_accumulate_grad_hook"):  # torch 2.1
            self._hooks.append(p.register_post_accumulate_grad_hook(accumulated))
        else:
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            self._nodes.append(node)
            self._hooks.append(node.register_hook(accumulated))

    def _accumulated(self, slot: _Slot) -> None:
        if self._sync:
            self._exchange.in_backward(lambda: self._start(slot), self._after_backward)

    def _start(self, slot: _Slot) -> None:
        if slot.started and self._find_unused and not self._fused:
            error = Error(
                f"parameter {slot.name!r} gets a second gradient in one backward, from another reentrant checkpoint: "
                "give torch.utils.checkpoint use_reentrant=False"
            )
            self._exchange.session.fail(error)
            raise error
        try:
            check_layout(slot.parameter.grad, slot.sparse, slot.name, self._exchange.session.rank)
        except Error as e:
            self._exchange.session.fail(e)
            raise
        grad = slot.settle()
        slot.started = True
        if self._fused:
            self._fused.pushing(slot, grad)
        kind = _lib.PUSH if self._fused else _lib.PUSHPULL
        if slot.sparse:
            self._exchange.start_rows(kind, slot.number, grad, lambda mean: setattr(slot.parameter, "grad", mean))
        else:
            self._exchange.start(kind, [(slot.number, grad)], gather=True)

    def _after_backward(self) -> None:
        self._exchange.check()
        if self._completed_by_step:
            return
        node = enclosing_node() if self._find_unused else None
        if node is not None:  # gradients that others wait for may still come
            self._await_outer(node)
            return
        if any(s.started for s in self._slots):
            self._complete()
        self._exchange.drain()

    def _await_outer(self, node: Any) -> None:
        """Lets _after_backward be called at the end of the backward too that has come to a node, by a hook of one that follows."""
        following = next(n for n, _ in node.next_functions if n is not None)

        def reached(*_: Any) -> None:
            hook.remove()
            self._exchange.in_backward(lambda: None, self._after_backward)

        hook = following.register_hook(reached)

    def _complete(self) -> None:
        """Exchanges what belongs to a backward, or fused to a step, and no hook has started."""
        if self._find_unused:
            for slot, somewhere in zip(self._slots, self._used()):
                if somewhere and not slot.started:
                    self._exchange_zeros(slot)
        for slot in self._slots:
            slot.started = False

    def _used(self) -> List[bool]:
        """Tells of each parameter whether any rank has a gradient for it."""
        self._flags[:] = torch.tensor([float(s.started or s.parameter.grad is not None) for s in self._slots])
        self._aside.session.push_pull(self._flags_number, self._flags.numpy()).wait()
        return [bool(n > 0) for n in self._flags.tolist()]

    def _exchange_zeros(self, slot: _Slot) -> None:
        p = slot.parameter
        absent = p.grad is None
        if absent:
            if slot.sparse:
                p.grad = torch.zeros_like(p, layout=torch.sparse_coo)
            else:
                p.grad = torch.zeros_like(p) if slot.place is None else slot.place.zero_()
        self._start(slot)
        if absent and self._fused:  # p.grad is this rank's own
            p.grad = None

    def _before_forward(self, module: torch.nn.Module) -> None:
        for s in self._slots:
            p = s.parameter
            if p.dtype != s.dtype or p.device != s.device:  # torch 1.13 calls no hook then
                raise ConfigError(
                    f"parameter {s.name!r} is of type {p.dtype} on {p.device}, and was of {s.dtype} on {s.device} when attached: "
                    "call detach(), and attach after model.to()"
                )
        if self._broadcast_buffers and module.training and self._sync and torch.is_grad_enabled():
            self._buffers.broadcast()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backward accumulate gradients here only; the next backward outside exchanges what has accumulated."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def clip_grad_norm_(self, max_norm: float) -> None:
        """Fused: clips the next step's averaged gradient to a global norm, as torch.nn.utils.clip_grad_norm_ does.

        It returns no norm, which the aggregator computes in the step: grad_norm has it after optimizer.step().
        """
        fused = self._need_fused("clip_grad_norm_", "torch.nn.utils.clip_grad_norm_")
        if not isinstance(max_norm, numbers.Real) or not max_norm > 0:
            raise ConfigError(f"max_norm is {max_norm!r}: give a number above 0")
        fused.clip = float(max_norm)

    def skip_step(self) -> None:
        """Fused: drops the gradients that were pushed since the last step, at every rank. All ranks call it."""
        self._need_fused("skip_step", "leaving out optimizer.step()").skip()

    @property
    def grad_norm(self) -> float:
        """Fused: the global norm of the last step's averaged gradient, before clipping."""
        return self._need_fused("grad_norm", "what torch.nn.utils.clip_grad_norm_ returns").norm

    def broadcast_parameters(self) -> None:
        """Gives all ranks, and fused the aggregator, rank 0's parameters; all ranks call it, after changing a model."""
        if self._fused:
            self._fused.broadcast()
        else:
            broadcast_parameters(self._exchange, [s.number for s in self._slots], [s.parameter for s in self._slots])

    def save(self, name: str) -> str:
        """Fused: writes parameters and optimizer state to the aggregator's disk; all ranks call it. Returns the path at rank 0."""
        return self._need_fused("save", "torch.save").save(name)

    def restore(self, name: str) -> None:
        """Fused: reads back what save wrote, parameters included; all ranks call it."""
        self._need_fused("restore", "torch.load").restore(name)

    def _need_fused(self, what: str, instead: str) -> Fused:
        if self._fused is None:
            raise ConfigError(f"{what} is for fused=True: use {instead}")
        return self._fused

    def stats(self) -> Dict[str, int]:
        """Returns what was moved: see rackweave.stats; and nonfinite, the gradients that held NaN or infinity."""
        return {**self._exchange.session.stats(), "nonfinite": self._exchange.nonfinite_count}

    def detach(self) -> None:
        """Takes the hooks away and leaves the job."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._nodes.clear()
        for slot in self._slots:
            attached.pop(id(slot.parameter), None)
        if self._fused:
            self._fused.detach()
        self._aside.session.close()
        self._exchange.session.close()
