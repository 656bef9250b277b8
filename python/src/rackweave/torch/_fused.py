"""An optimizer that runs at the aggregator: backward pushes gradients, step commits them and gets the parameters."""

from __future__ import annotations

import types
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _lib
from ..errors import ConfigError, Error
from . import _arena
from ._exchange import Exchange


def _sgd(g: Dict[str, Any]) -> Tuple[str, Dict[str, float], List[str]]:
    if g["nesterov"]:
        return "nesterov_torch", {"momentum": g["momentum"], "dampening": g["dampening"]}, []
    return "sgd_torch", {"momentum": g["momentum"], "dampening": g["dampening"]}, []


def _adam(rule: str) -> Callable[[Dict[str, Any]], Tuple[str, Dict[str, float], List[str]]]:
    def read(g: Dict[str, Any]) -> Tuple[str, Dict[str, float], List[str]]:
        beta1, beta2 = g["betas"]
        return rule, {"beta1": beta1, "beta2": beta2, "eps": g["eps"]}, ["amsgrad"]

    return read


def _adagrad(g: Dict[str, Any]) -> Tuple[str, Dict[str, float], List[str]]:
    return "adagrad_torch", {"eps": g["eps"]}, ["lr_decay", "initial_accumulator_value"]


def _rmsprop(g: Dict[str, Any]) -> Tuple[str, Dict[str, float], List[str]]:
    return "rmsprop_torch", {"alpha": g["alpha"], "eps": g["eps"], "momentum": g["momentum"]}, ["centered"]


# For each optimizer the rule, its hyper-parameters, and the options that must be off.
_RULES: Dict[type, Callable[[Dict[str, Any]], Tuple[str, Dict[str, float], List[str]]]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam("adam_torch"),
    torch.optim.AdamW: _adam("adamw_torch"),
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}

_SAME = 1e-6  # how far, relatively, a group's learning rate may be from the multiple of the first's that was registered


class Fused:
    """Replaces the step of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Sequence[Tuple[str, torch.Tensor]], scaler: Any) -> None:
        self._optimizer, self._scaler = optimizer, scaler
        name = type(optimizer).__name__
        if type(optimizer) not in _RULES:
            raise ConfigError(
                f"the aggregator has no rule for {name}: use {', '.join(sorted(t.__name__ for t in _RULES))}, or attach without fused"
            )
        self.rule, self._fixed = self._read(optimizer.param_groups[0])
        self.clip, self.norm = 0.0, 0.0
        self._base = self._bases()
        self.hyper = {**self._fixed, "lr": self._base[0], "wd": self._base[1]}
        group_of = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        self.multipliers: Dict[str, Tuple[float, float]] = {}
        for n, p in named:
            if id(p) not in group_of:
                raise ConfigError(f"parameter {n!r} is not the optimizer's: add it, or freeze it (requires_grad_(False)) before attach")
            self.multipliers[n] = self._ratios(group_of[id(p)])
        self._registered = [self._ratios(g) for g in optimizer.param_groups]
        self._pushed: Dict[int, bool] = {}

    def _read(self, group: Dict[str, Any]) -> Tuple[str, Dict[str, float]]:
        rule, hyper, off = _RULES[type(self._optimizer)](group)
        for option in [*off, "maximize", "differentiable"]:
            if group.get(option):
                raise ConfigError(f"{type(self._optimizer).__name__} with {option}={group[option]}: the aggregator has no rule for it: attach without fused")
        return rule, {k: float(v) for k, v in hyper.items()}

    def _bases(self) -> Tuple[float, float]:
        """The learning rate and weight decay that the groups' are multiples of: the largest."""
        groups = self._optimizer.param_groups
        return max(float(g["lr"]) for g in groups), max(float(g["weight_decay"]) for g in groups)

    def _ratios(self, group: Dict[str, Any]) -> Tuple[float, float]:
        lr, wd = self._bases()
        return float(group["lr"]) / lr if lr else 1.0, float(group["weight_decay"]) / wd if wd else 1.0

    def attach(self, exchange: Exchange, slots: Sequence[Any]) -> None:
        """Moves the parameters to where the aggregator writes them, and takes the optimizer's step."""
        self._exchange, self._slots = exchange, list(slots)
        self._of = {id(s.parameter): s for s in slots}
        with torch.no_grad():
            for s in self._slots:
                if not s.parameter.is_cuda:
                    home = _arena.empty_like(s.parameter)
                    home.copy_(s.parameter)
                    s.parameter.data = home
        self._inner = self._optimizer.step
        fused = self

        # A method of the optimizer, because torch's schedulers wrap it as one.
        def step(optimizer: torch.optim.Optimizer, closure: Optional[Callable[[], Any]] = None) -> Any:
            return fused._step(closure)

        self._optimizer.step = types.MethodType(step, self._optimizer)  # type: ignore[method-assign]
        self._state_dict = self._optimizer.state_dict
        self._optimizer.state_dict = self._refuse_state_dict  # type: ignore[method-assign]

    def detach(self) -> None:
        """Gives the optimizer its step back."""
        self._optimizer.step = self._inner  # type: ignore[method-assign]
        self._optimizer.state_dict = self._state_dict  # type: ignore[method-assign]

    def pushing(self, slot: Any) -> None:
        """Notes that a gradient is about to be pushed."""
        if slot.number in self._pushed:
            error = Error(
                f"parameter {slot.name!r} gets a second gradient before optimizer.step(): wrap every backward but the last in Attached.no_sync(), "
                "or call Attached.skip_step() where a step is left out"
            )
            self._exchange.session.fail(error)
            raise error
        self._pushed[slot.number] = True

    def _step(self, closure: Optional[Callable[[], Any]]) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check()
        self._exchange.drain()
        if self._pushed:
            self._commit()
            self._pull()
        # The optimizer's own step, or a scheduler's around it, counts the step and finds nothing to do.
        grads = [(s.parameter, s.parameter.grad) for s in self._slots]
        for p, _ in grads:
            p.grad = None
        try:
            self._inner()
        finally:
            for p, grad in grads:
                p.grad = grad
        return loss

    def _commit(self, skip: bool = False) -> None:
        lr, wd = self._bases()
        scale = 1.0 / self._exchange.session.world_size
        if self._scaler is not None:
            scale /= float(self._scaler.get_scale())
        self.norm, _ = self._exchange.session.commit(lr=lr, wd=wd, scale=scale, clip=self.clip, skip=skip)
        self.clip = 0.0
        self._pushed.clear()

    def _pull(self) -> None:
        self._exchange.start(_lib.PULL, [(s.number, s.parameter.data) for s in self._slots])
        self._exchange.drain()

    def skip(self) -> None:
        """Drops what was pushed."""
        self._exchange.drain()
        self._commit(skip=True)

    def _check(self) -> None:
        """Refuses what the aggregator would not see."""
        for group, registered in zip(self._optimizer.param_groups, self._registered):
            rule, fixed = self._read(group)
            if rule != self.rule or fixed != self._fixed:
                raise ConfigError(f"hyper-parameters {fixed} differ from {self._fixed}: fused, only lr and weight_decay may change, or differ by group")
            for what, now, then in zip(("lr", "weight_decay"), self._ratios(group), registered):
                if abs(now - then) > _SAME * max(abs(then), _SAME):
                    raise ConfigError(
                        f"a group's {what} is {now:g} of the largest and was {then:g} when attached: fused, schedulers must scale all groups alike; "
                        "or attach without fused"
                    )

    def save(self, name: str) -> str:
        """Writes the job's checkpoint."""
        session = self._exchange.session
        session.barrier("save")
        path = session.save(name) if session.rank == 0 else ""
        session.barrier("saved")
        return path

    def restore(self, name: str) -> None:
        """Reads the job's checkpoint, and pulls the parameters."""
        session = self._exchange.session
        session.barrier("restore")
        if session.rank == 0:
            session.restore(name)
        session.barrier("restored")
        self._pull()

    def _refuse_state_dict(self, *_: Any, **__: Any) -> Dict[str, Any]:
        raise ConfigError("fused, the optimizer's state lies at the aggregator: use Attached.save(name) and Attached.restore(name)")
