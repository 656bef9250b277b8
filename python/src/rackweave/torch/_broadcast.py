"""An optimizer's state, made that of rank 0."""

from __future__ import annotations

import io
import pickle
from typing import Any, List, Tuple

import torch

from .. import _world
from .._collectives import gather, taking_part
from ..errors import ConfigError
from ._state import PAGE, broadcast_pages

_SMALL = 1 << 10  # bytes of a tensor that travels with what is not one


class _Pickler(pickle.Pickler):
    """Leaves large tensors out, in the order in which _Unpickler makes them. A sparse one's are its indices and values."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: List[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor) or obj.layout != torch.strided or obj.numel() * obj.element_size() <= _SMALL:
            return None
        self.tensors.append(obj.detach().cpu().contiguous())
        return obj.dtype, tuple(obj.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: List[torch.Tensor] = []

    def persistent_load(self, pid: Tuple[torch.dtype, Tuple[int, ...]]) -> torch.Tensor:
        self.tensors.append(torch.zeros(pid[1], dtype=pid[0]))  # indices, too, which are checked before they have come
        return self.tensors[-1]


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Gives all ranks the state of rank 0's optimizer, for example after rank 0 alone has loaded a checkpoint."""
    w = _world.world()
    with taking_part(w):
        if root_rank != 0:
            raise ConfigError(f"root_rank {root_rank}: parameters and states are rank 0's: load the checkpoint there")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"broadcast_optimizer_state of a {type(optimizer).__name__}: give a torch.optim.Optimizer")
        if "load_state_dict" in vars(optimizer):
            raise ConfigError("broadcast_optimizer_state: the optimizer of attach(fused=True) has one state for all ranks already")
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        file, tensors = io.BytesIO(), []
        if w.rank == 0:
            pickler = _Pickler(file)
            pickler.dump(optimizer.state_dict())
            tensors = pickler.tensors
    what = f"broadcast_optimizer_state of {type(optimizer).__name__} with groups of {sizes} parameters"
    plain = gather(w, what, file.getvalue())[0]
    if w.rank != 0:
        unpickler = _Unpickler(io.BytesIO(plain))
        state, tensors = unpickler.load(), unpickler.tensors
    page = torch.zeros(PAGE)
    number = w.number("rackweave.pages", page.numpy(), False)
    broadcast_pages(w.exchange(False), number, page, tensors)
    if w.rank != 0:
        optimizer.load_state_dict(state)
