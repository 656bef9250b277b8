"""An optimizer that runs at the aggregator: backward pushes gradients, step commits them and gets the parameters."""

from __future__ import annotations

import math
import types
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _lib
from ..errors import ConfigError, Error
from . import _arena
from ._exchange import Exchange
from ._state import broadcast_parameters


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


_SPARSE_ADAM = "sparse_adam_torch"

# For each optimizer the rule, its hyper-parameters, and the options that must be off.
_RULES: Dict[type, Callable[[Dict[str, Any]], Tuple[str, Dict[str, float], List[str]]]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam("adam_torch"),
    torch.optim.AdamW: _adam("adamw_torch"),
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.SparseAdam: _adam(_SPARSE_ADAM),
}

# What each rule keeps at the aggregator, in its order, by torch's names; those of momentum only with one.
_STATES: Dict[str, List[str]] = {
    "sgd_torch": ["momentum_buffer"],
    "nesterov_torch": ["momentum_buffer"],
    "adam_torch": ["exp_avg", "exp_avg_sq"],
    "adamw_torch": ["exp_avg", "exp_avg_sq"],
    "adagrad_torch": ["sum"],
    "rmsprop_torch": ["square_avg", "momentum_buffer"],
    _SPARSE_ADAM: ["exp_avg", "exp_avg_sq"],
}
_WITHOUT_STEP = ("sgd_torch", "nesterov_torch")  # torch keeps no count of theirs
_TAKE_SPARSE = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam)

_SAME = 1e-6  # how far, relatively, a group's share of the largest learning rate may be from the one that was registered


class Fused:
    """Replaces the step of one optimizer."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Sequence[Tuple[str, torch.Tensor]],
        scaler: Any = None,
        sparse: Collection[int] = (),
    ) -> None:
        self._optimizer = optimizer
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        name = type(optimizer).__name__
        if type(optimizer) not in _RULES:
            raise ConfigError(
                f"the aggregator has no rule for {name}: use {', '.join(sorted(t.__name__ for t in _RULES))}, "
                "or attach without fused"
            )
        self.rule, self._fixed = self._read(optimizer.param_groups[0])
        self.clip, self.norm = 0.0, 0.0
        self._base = self._bases()
        self.hyper = {**self._fixed, "lr": self._base[0]}
        if "weight_decay" in optimizer.param_groups[0]:  # SparseAdam has none
            self.hyper["wd"] = self._base[1]
        group_of = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        self.multipliers: Dict[str, Tuple[float, float]] = {}
        for n, p in named:
            if id(p) not in group_of:
                raise ConfigError(
                    f"parameter {n!r} is not the optimizer's: add it, or freeze it (requires_grad_(False)) before attach"
                )
            self.multipliers[n] = self._ratios(group_of[id(p)])
            self._check_kind(n, group_of[id(p)], id(p) in sparse)
        # Rows that had a gradient go on moving by their momentum, as torch's do; without it untouched rows stay.
        self.standard = bool(self._fixed.get("momentum"))
        self._marks: Optional[Exchange] = None
        self._mark: Dict[int, int] = {}  # by the number of a lazily updated tensor: that of its marks
        self._marked: Dict[int, int] = {}  # in this step
        self._registered = [self._ratios(g) for g in optimizer.param_groups]
        self._pushed: Dict[int, Tuple[torch.Tensor, int]] = {}  # each gradient, and its version as it was pushed

    def _read(self, group: Dict[str, Any]) -> Tuple[str, Dict[str, float]]:
        rule, hyper, off = _RULES[type(self._optimizer)](group)
        for option in [*off, "maximize", "differentiable"]:
            if group.get(option):
                name = type(self._optimizer).__name__
                raise ConfigError(f"{name} with {option}: the aggregator has no rule for it: attach without fused")
        return rule, {k: float(v) for k, v in hyper.items()}

    def _check_kind(self, name: str, group: Dict[str, Any], sparse: bool) -> None:
        """Refuses a parameter whose gradients the optimizer does not take in torch, either."""
        optimizer = type(self._optimizer).__name__
        if sparse and (type(self._optimizer) not in _TAKE_SPARSE or group.get("weight_decay")):
            decay = f" with weight_decay {group['weight_decay']}" if group.get("weight_decay") else ""
            raise ConfigError(
                f"{optimizer}{decay} does not take sparse gradients, as parameter {name!r} has: attach modules with sparse "
                "embeddings apart, by SparseAdam, or SGD or Adagrad without weight_decay; or make the embedding with sparse=False"
            )
        if not sparse and self.rule == _SPARSE_ADAM:
            raise ConfigError(
                f"SparseAdam does not take dense gradients, as parameter {name!r} has: attach modules with sparse embeddings "
                "and those without apart, each with its optimizer"
            )

    def _bases(self) -> Tuple[float, float]:
        """The learning rate and weight decay that the groups' are multiples of: the largest."""
        groups = self._optimizer.param_groups
        return max(float(g["lr"]) for g in groups), max(float(g.get("weight_decay", 0)) for g in groups)

    def _ratios(self, group: Dict[str, Any]) -> Tuple[float, float]:
        lr, wd = self._bases()
        return float(group["lr"]) / lr if lr else 1.0, float(group.get("weight_decay", 0)) / wd if wd else 1.0

    def attach(self, exchange: Exchange, slots: Sequence[Any], complete: Callable[[], None]) -> None:
        """Moves the parameters to where the aggregator writes them, and takes the optimizer's step.

        complete pushes what belongs to a step and no backward has pushed.
        """
        self._exchange, self._slots, self._complete = exchange, list(slots), complete
        self._of = {id(s.parameter): s for s in slots}
        with torch.no_grad():
            for s in self._slots:
                if not s.parameter.is_cuda:
                    place = _arena.empty_like(s.parameter)
                    place.copy_(s.parameter)
                    s.parameter.data = place
        self._inner = self._optimizer.step
        fused = self

        # A method of the optimizer, because torch's schedulers wrap it as one. Old scalers pass themselves.
        def step(optimizer: torch.optim.Optimizer, closure: Optional[Callable[[], Any]] = None, **_: Any) -> Any:
            return fused._step(closure)

        self._optimizer.step = types.MethodType(step, self._optimizer)  # type: ignore[method-assign]
        if self.scaler is not None:  # it leaves unscaling and overflow to step
            self._optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        self._state_dict, self._load_state_dict = self._optimizer.state_dict, self._optimizer.load_state_dict
        self._optimizer.state_dict = self._read_state_dict  # type: ignore[method-assign]
        self._optimizer.load_state_dict = self._write_state_dict  # type: ignore[method-assign]

    @property
    def lazy(self) -> List[Any]:
        """The sparse parameters whose rows change only with a gradient."""
        return [s for s in self._slots if s.sparse and not self.standard]

    def mark(self, marks: Exchange) -> None:
        """Exchanges by marks which rows any rank touches: their new values are pulled after a step."""
        self._marks = marks
        like = [(f"touched rows of {s.name}", torch.empty((len(s.parameter), 1))) for s in self.lazy]
        self._mark = {s.number: n for s, n in zip(self.lazy, marks.register(like, sparse=[id(t) for _, t in like]))}

    def detach(self) -> None:
        """Gives the optimizer its step back."""
        if self.scaler is not None:
            del self._optimizer._step_supports_amp_scaling  # type: ignore[attr-defined]
        self._optimizer.step = self._inner  # type: ignore[method-assign]
        self._optimizer.state_dict = self._state_dict  # type: ignore[method-assign]
        self._optimizer.load_state_dict = self._load_state_dict  # type: ignore[method-assign]

    def pushing(self, slot: Any, grad: torch.Tensor) -> None:
        """Notes that a gradient is about to be pushed."""
        if slot.number in self._pushed:
            error = Error(
                f"parameter {slot.name!r} gets a second gradient before optimizer.step(): wrap every backward but the last in "
                "Attached.no_sync(), or call Attached.skip_step() where a step is left out"
            )
            self._exchange.session.fail(error)
            raise error
        self._pushed[slot.number] = grad, grad._version
        if slot.number in self._mark and self._marks is not None:
            ids = grad._indices()[:1]  # zero_grad leaves a gradient whose indices have the columns, too
            mark = torch.sparse_coo_tensor(ids, torch.ones((ids.shape[1], 1)), (len(slot.parameter), 1), device="cpu")
            self._marks.start_rows(_lib.PUSHPULL, self._mark[slot.number], mark._coalesced_(True), None)
            self._marked[slot.number] = self._mark[slot.number]

    def _step(self, closure: Optional[Callable[[], Any]]) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check()
        self._exchange.check()
        if self._pushed:
            self._commit()
            if self._report():
                self._pull(whole=False)
        else:
            self._check_none_is_left()
        # The optimizer's own step, or a scheduler's around it, counts the step and finds nothing to do.
        grads = [(s.parameter, s.parameter.grad) for s in self._slots]
        for p, _ in grads:
            p.grad = None
        for name in ("grad_scale", "found_inf"):  # a scaler left them for the step, and deletes them
            if hasattr(self._optimizer, name):
                setattr(self._optimizer, name, None)
        try:
            self._inner()
        finally:
            for p, grad in grads:
                p.grad = grad
        return loss

    def _commit(self, skip: bool = False) -> None:
        self._complete()
        self._exchange.drain()
        lr, wd = self._bases()
        scale = 1.0 / self._exchange.session.world_size
        if self.scaler is not None:
            scale /= self.scaler.get_scale()
        self.norm, _ = self._exchange.session.commit(
            lr=lr, wd=wd, scale=scale, clip=self.clip, skip=skip, skip_non_finite=self.scaler is not None
        )
        self.clip = 0.0
        self._pushed.clear()
        if self._marks is not None:
            self._marks.drain()

    def _report(self) -> bool:
        """Tells the scaler whether any rank's gradient overflowed, and the caller whether the parameters have changed."""
        if self.scaler is None:
            return True
        overflow = not math.isfinite(self.norm)
        if not self.scaler._found_inf_per_device(self._optimizer):
            self.scaler._check_inf_per_device(self._optimizer)
        for found in self.scaler._found_inf_per_device(self._optimizer).values():
            found.fill_(float(overflow))
        return not overflow

    def broadcast(self) -> None:
        """Makes rank 0's parameters everyone's, and the aggregator's."""
        broadcast_parameters(self._exchange, [s.number for s in self._slots], [s.parameter for s in self._slots])
        self._versions = [s.parameter._version for s in self._slots]

    def _pull(self, whole: bool = True) -> None:
        """Gets the parameters. Unless whole, lazily updated ones give only the rows that the step touched."""
        apart = {} if whole else self._mark
        self._exchange.start(_lib.PULL, [(s.number, s.parameter.data) for s in self._slots if s.number not in apart])
        if self._marks is not None and not whole:
            for number, mark in self._marked.items():
                self._exchange.pull_rows(number, self._marks.tables[mark].touched())
        self._marked.clear()
        self._exchange.drain()

    def skip(self) -> None:
        """Drops what was pushed."""
        self._exchange.check()
        self._commit(skip=True)

    def _check(self) -> None:
        """Refuses what the aggregator would not see."""
        for slot, version in zip(self._slots, self._versions):
            if slot.parameter._version != version:
                raise Error(
                    f"parameter {slot.name!r} was changed, and fused its values are the aggregator's: "
                    "call Attached.broadcast_parameters() after loading or changing a model"
                )
        unscaled = 0 if self.scaler is None else 1  # it looks at this rank's own gradient, and writes it
        for slot in self._slots:
            pushed, version = self._pushed.get(slot.number, (None, 0))
            if pushed is not None and (
                slot.parameter.grad is not pushed or pushed._version not in (version, version + unscaled)
            ):
                raise Error(
                    f"the gradient of {slot.name!r} was changed after backward had pushed it, which the aggregator does not see: "
                    "clip with Attached.clip_grad_norm_, name a GradScaler by attach(scaler=), and for changes of your own attach "
                    "without fused"
                )
        if len(self._optimizer.param_groups) != len(self._registered):
            raise ConfigError("the optimizer has other groups than when attached: call detach(), add the group and attach again")
        for group, registered in zip(self._optimizer.param_groups, self._registered):
            for what in ("lr", "weight_decay"):
                if not math.isfinite(group.get(what, 0)):
                    raise ConfigError(f"a group's {what} is {group[what]}: set a finite number")
            rule, fixed = self._read(group)
            if rule != self.rule or fixed != self._fixed:
                raise ConfigError(
                    f"hyper-parameters {fixed} differ from {self._fixed}: fused, only lr and weight_decay may change, "
                    "or differ by group"
                )
            for what, now, then in zip(("lr", "weight_decay"), self._ratios(group), registered):
                if abs(now - then) > _SAME * max(abs(then), _SAME):
                    raise ConfigError(
                        f"a group's {what} is {now:g} of the largest and was {then:g} when attached: fused, schedulers must "
                        "scale all groups alike; or attach without fused"
                    )

    def _check_none_is_left(self) -> None:
        """Refuses a step that no backward has pushed a gradient for, and that torch would take."""
        for slot in self._slots:
            grad = slot.parameter.grad
            if grad is not None and (grad._values() if grad.is_sparse else grad).any():
                raise Error(
                    f"no backward has pushed a gradient since the last step, and {slot.name!r} has one that the aggregator does "
                    "not see: call zero_grad() and backward() before each step, the last one outside Attached.no_sync(), or for "
                    "gradients of your own attach without fused"
                )

    def save(self, name: str) -> str:
        """Writes the job's checkpoint."""
        session = self._exchange.session
        session.barrier("save")
        try:
            return session.save(name) if session.rank == 0 else ""
        finally:  # an error is rank 0's alone, and holds nobody up
            session.barrier("saved")

    def restore(self, name: str) -> None:
        """Reads the job's checkpoint, and pulls the parameters."""
        session = self._exchange.session
        session.barrier("restore")
        try:
            if session.rank == 0:
                session.restore(name)
        finally:
            session.barrier("restored")
        self._pull()

    def _kept(self) -> List[str]:
        """Names the states that the aggregator keeps."""
        return [n for n in _STATES[self.rule] if n != "momentum_buffer" or self._fixed["momentum"]]

    def _places(self) -> List[Tuple[int, Any]]:
        """Lists the managed parameters by their numbers in a state dict."""
        parameters = [p for g in self._optimizer.param_groups for p in g["params"]]
        return [(i, self._of[id(p)]) for i, p in enumerate(parameters) if id(p) in self._of]

    def _read_state_dict(self) -> Dict[str, Any]:
        """The optimizer's state_dict with the state that lies at the aggregator."""
        out, session = self._state_dict(), self._exchange.session
        for i, slot in self._places():
            steps = session.updates(slot.number)
            if steps == 0:
                continue
            step = steps if self.rule == _SPARSE_ADAM else torch.tensor(float(steps))
            state = out["state"][i] = {} if self.rule in _WITHOUT_STEP else {"step": step}
            for array, name in enumerate(self._kept(), 1):
                data = bytearray(session.read_state(slot.number, array))
                state[name] = self._shaped(slot, torch.frombuffer(data, dtype=torch.float32))
        return out

    def _shaped(self, slot: Any, flat: torch.Tensor) -> torch.Tensor:
        """Gives an array of the aggregator's, which has the order of memory, the parameter's shape and strides."""
        p = slot.parameter
        return torch.as_strided(flat, p.shape, p.stride()) if _arena.is_dense(p) else flat.view(p.shape)

    def _write_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """The optimizer's load_state_dict, to the aggregator; all ranks call it. Their parameters become rank 0's, as loaded."""
        session = self._exchange.session
        self._load_state_dict({**state_dict, "state": {}})
        session.barrier("load")
        if session.rank == 0:
            for i, slot in self._places():
                state = state_dict["state"].get(i, {})
                # torch counts no steps of SGD; of its first the aggregator must only know that it was.
                steps = int(state.get("step", 1)) if state else 0
                for array, name in enumerate(self._kept(), 1):
                    values = self._shaped(slot, torch.zeros(slot.parameter.numel()))
                    if state.get(name) is not None:
                        values.copy_(state[name].to_dense() if state[name].is_sparse else state[name])
                    flat = torch.as_strided(values, (values.numel(),), (1,))
                    session.write_state(slot.number, array, flat.numpy().tobytes(), steps)
        session.barrier("loaded")
        self.broadcast()
