"""DistributedDataParallel with its gradients averaged by the aggregator: a communication hook."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import _lib
from .._world import world
from ..errors import ConfigError, TensorError
from . import _arena
from ._attach import Attached
from ._exchange import Exchange
from ._refusals import exchanged
from ._rows import sparse_of
from ._state import BeforeForward, Buffers, broadcast_frozen, broadcast_parameters


def ddp(
    module: torch.nn.Module, *, wire: str = "", nonfinite: str = "count", compress: Optional[str] = None, **options: Any
) -> DistributedDataParallel:
    """Returns a DistributedDataParallel whose gradients are averaged by the aggregator, exactly and in rank order.

    module is a DistributedDataParallel, which gets the hook before its first backward, or a plain module, which is wrapped with
    options for DistributedDataParallel. torch's process group goes on carrying what is not gradients: the first broadcast of
    parameters, and buffers. Where there is no process group, the aggregator carries these too.

    Args:
        wire: the gradients' type on the wire, f32, bf16 or f16; empty: their own.
        nonfinite: what to do about gradients with NaN or infinity: ignore, count (see stats) or refuse, which fails the job
            with an error that names tensor and rank.
        compress: the codecs of gradients and answers, such as int4 or sign/int8, and none for none; None: what init was given.
            Gradients travel in f32 then. What a codec leaves out is kept, 4 bytes for each element, and sent later.
    """
    wrapped = isinstance(module, DistributedDataParallel)
    exchanged(module.module if wrapped else module)
    if not wrapped:
        options.setdefault("gradient_as_bucket_view", True)
        module = _wrap(module, options)
    elif module in _hooked:
        raise ConfigError(
            "the DistributedDataParallel has RackWeave's hook already: call ddp once, "
            "or after detach with a new DistributedDataParallel of its module"
        )
    elif options:
        raise ConfigError(f"the module is a DistributedDataParallel already: give {', '.join(options)} to that")
    size = dist.get_world_size(module.process_group)
    w = world()
    if size not in (1, w.world_size):
        raise ConfigError(
            f"the module's process group has {size} processes and RackWeave {w.world_size} workers: start both with the same number"
        )
    if size == 1 and w.world_size > 1 and getattr(module, "find_unused_parameters", False):
        raise ConfigError(
            "find_unused_parameters=True needs a process group, by which DistributedDataParallel tells ranks' unused parameters: "
            "call torch.distributed.init_process_group() before, or use rackweave.torch.attach(model, find_unused_parameters=True)"
        )
    exchange = Exchange(w.session(hyper={"scale": 1 / w.world_size}, compress=compress), nonfinite)
    hook = _Hook(exchange, module, wire)
    if size == 1 and w.world_size > 1:
        broadcast_parameters(exchange, hook.numbers, hook.parameters)
        broadcast_frozen(exchange, module.module)
        buffers = Buffers(exchange, module.module)
        buffers.broadcast()
        if module.broadcast_buffers:
            module.register_forward_pre_hook(BeforeForward(_sync_buffers(buffers)))

    module.register_comm_hook(hook, rackweave_hook)
    _hooked.add(module)
    _exchanges[module] = exchange
    return module


# torch wants a function with an argument of this name, and no annotations that are strings; it pickles it with the model.
def rackweave_hook(state, bucket):  # type: ignore[no-untyped-def]
    return state(bucket)


_exchanges: "weakref.WeakKeyDictionary[DistributedDataParallel, Exchange]" = weakref.WeakKeyDictionary()

_hooked: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()  # also those that detach took, which keep the hook


def stats(model: Union[DistributedDataParallel, Attached]) -> Dict[str, int]:
    """Returns what was moved for a model that ddp returned, or for what attach returned.

    See rackweave.stats; and nonfinite, the gradients of this rank that held NaN or infinity.
    """
    if isinstance(model, Attached):
        return model.stats()
    exchange = _exchange_of(model)
    return {**exchange.session.stats(), "nonfinite": exchange.nonfinite_count}


def detach(model: Union[DistributedDataParallel, Attached]) -> None:
    """Leaves the job of a model that ddp returned, or of what attach returned. All ranks call it.

    A DistributedDataParallel keeps its hook, so it trains no longer: wrap its module again for that.
    """
    if isinstance(model, Attached):
        model.detach()
        return
    _exchange_of(model).session.close()
    del _exchanges[model]


def _exchange_of(model: Any) -> Exchange:
    exchange = _exchanges.get(model) if isinstance(model, DistributedDataParallel) else None
    if exchange is None:
        raise ConfigError(f"this {type(model).__name__} is not exchanged: give what rackweave.torch.ddp or attach returned")
    return exchange


def _wrap(module: torch.nn.Module, options: Dict[str, Any]) -> DistributedDataParallel:
    """Wraps a module. Refuses one with tensors that Gloo does not broadcast, as PyTorch 1.13's no bfloat16, by the first's name."""
    group = _process_group()
    try:
        return DistributedDataParallel(module, process_group=group, **options)
    except RuntimeError as e:
        if "Invalid scalar type" not in str(e):
            raise
        states = [*module.named_parameters(), *module.named_buffers()]
        name, t = next(((n, t) for n, t in states if t.dtype not in _GLOO_TYPES), states[0])
        raise TensorError(
            f"tensor {name!r} is of type {t.dtype}, which DistributedDataParallel of PyTorch {torch.__version__} does not "
            "broadcast: use rackweave.torch.attach(model)"
        ) from e


_GLOO_TYPES = (torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64)


def _process_group() -> Any:
    """Returns the process group to wrap with: the default one, or where there is none, one of this process alone."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return None


def _sync_buffers(buffers: Buffers) -> Any:
    def before_forward(module: Any) -> None:
        if module.training and module.require_backward_grad_sync and torch.is_grad_enabled():
            buffers.broadcast()

    return before_forward


class _Hook:
    """Exchanges buckets, parameter by parameter: which bucket a parameter is in changes, its name does not."""

    def __init__(self, exchange: Exchange, module: DistributedDataParallel, wire: str) -> None:
        self._exchange = exchange
        ignored = set(getattr(module.module, "_ddp_params_and_buffers_to_ignore", ()))
        named = [(n, p) for n, p in module.module.named_parameters() if p.requires_grad and p.numel() > 0 and n not in ignored]
        self.parameters = [p for _, p in named]
        self.numbers: List[int] = exchange.register(named, wire, sparse=sparse_of(module.module))
        self._number = {id(p): number for p, number in zip(self.parameters, self.numbers)}
        self._seen: Dict[int, int] = {}  # the address of each bucket
        self._adopted: Dict[int, _arena.Adopted] = {}
        ddp = weakref.ref(module)
        self._module_is_static: Callable[[], bool] = lambda: bool(getattr(ddp(), "static_graph", False))
        self._module_joins: Callable[[], bool] = lambda: bool(getattr(getattr(ddp(), "_join_config", None), "enable", False))
        self._static_known = False  # a static graph's first backward is over

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        items = [(self._number[id(p)], g) for p, g in zip(bucket.parameters(), bucket.gradients()) if p.numel() > 0]

        def start() -> None:
            if self._module_joins():
                raise ConfigError(
                    "DistributedDataParallel.join() is not supported: take as many steps as every rank can, "
                    "steps = rackweave.allreduce(len(loader), op=rackweave.Min)"
                )
            if buffer.is_sparse:  # a bucket of one parameter, whose gradients() are none
                number = self._number[id(bucket.parameters()[0])]
                self._exchange.start_rows(_lib.PUSHPULL, number, buffer, future.set_result)
                return
            self._settle(bucket.index(), buffer)
            self._exchange.start(_lib.PUSHPULL, items, lambda: future.set_result(buffer))

        if self._module_is_static() and not self._static_known:
            # A static graph's first backward starts all buckets from one callback at its end, which waits for them itself.
            self._static_known = bucket.is_last()
            start()
            self._exchange.drain()
            return future
        # DDP's own callback comes after drain and finds its futures done, so no wait of it keeps Ctrl-C or an error away.
        self._exchange.in_backward(start, self._exchange.drain)
        return future

    def __deepcopy__(self, _: Any) -> None:
        """Leaves a model's copy without this, because it has no such hook."""

    def __reduce__(self) -> Any:
        return type(None), ()

    def _settle(self, index: int, buffer: torch.Tensor) -> None:
        """Adopts a bucket's memory when it is seen at the same place again: DDP makes others after the first backward."""
        adopted = self._adopted.get(index)
        if adopted is not None and adopted.address != buffer.data_ptr():
            del self._adopted[index]
        if self._seen.get(index) == buffer.data_ptr() and index not in self._adopted and not buffer.is_cuda:
            self._adopted[index] = _arena.Adopted(buffer)
        self._seen[index] = buffer.data_ptr()
