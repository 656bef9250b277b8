"""Models whose gradients cannot be exchanged, refused by name and with the remedy."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Sequence, Tuple

import torch

from ..errors import ConfigError, TensorError

attached: Dict[int, "weakref.ref[torch.Tensor]"] = {}  # the parameters of all that are attached, by identity


def exchanged(model: torch.nn.Module) -> Sequence[Tuple[str, torch.Tensor]]:
    """Returns the parameters of a model that have gradients, by name; refuses a model that others exchange, or nobody can."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"the model is of type {type(model).__name__}: give a torch.nn.Module first")
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.numel() > 0]
    if not named:
        raise ConfigError("the model has no parameter that requires a gradient: give it before they are frozen, or leave it out")
    for name, module in model.named_modules():
        where = f"module {name!r}" if name else "the model"
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise ConfigError(f"{where} is a DistributedDataParallel, which exchanges gradients: use rackweave.torch.ddp on that")
        if any(c.__name__ in ("FullyShardedDataParallel", "FSDPModule") for c in type(module).__mro__):
            raise ConfigError(f"{where} is sharded by FSDP, which exchanges its gradients: give a model that is not sharded")
    for name, p in named:
        if hasattr(p, "device_mesh"):
            raise ConfigError(f"parameter {name!r} is a DTensor, of a model that is sharded: give a model that is not sharded")
        if p.is_meta:
            raise TensorError(f"parameter {name!r} is on the meta device, without values: call model.to_empty and fill it")
        other = attached.get(id(p))
        if other is not None and other() is p:
            raise ConfigError(f"parameter {name!r} is attached already: call detach() of what attach returned first")
    return named


def check_optimizer(optimizer: Any, named: Sequence[Tuple[str, torch.Tensor]]) -> None:
    """Refuses what is not an optimizer, or is another model's."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise ConfigError(f"the optimizer is of type {type(optimizer).__name__}: give a torch.optim.Optimizer")
    if not {id(p) for g in groups for p in g["params"]} & {id(p) for _, p in named}:
        raise ConfigError("the optimizer has none of the model's parameters: make it of model.parameters()")


def check_max_norm(model: torch.nn.Module) -> None:
    """Refuses embeddings whose forward changes their parameter, which fused is the aggregator's."""
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None and isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            where = f"module {name!r}" if name else "the model"
            raise ConfigError(
                f"{where} has max_norm, by which forward changes its parameter, and fused its values are the aggregator's: "
                "use max_norm=None, or attach without fused"
            )
