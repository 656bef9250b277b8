"""What gluon.Trainer and Module do with a kvstore, put right for this one."""

from __future__ import annotations

import functools
import types
from typing import Any, List

import mxnet as mx
import numpy as np
from mxnet import model as _model
from mxnet.gluon import trainer as _trainer
from mxnet.module import module as _module

from ..errors import ConfigError, TensorError
from ._store import RackWeave
from ._values import TYPES


def _create(create: Any) -> Any:
    """Wraps _create_kvstore, which makes no store for one device unless its name says dist."""

    @functools.wraps(create)
    def wrapper(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if isinstance(kvstore, str) and "rackweave" in kvstore.lower():
            kvstore = mx.kv.create(kvstore)
        return create(kvstore, num_device, arg_params)

    return wrapper


def _initialize(initialize: Any) -> Any:
    """Wraps _initialize_kvstore, which leaves each worker its own weights where the workers update."""

    @functools.wraps(initialize)
    def wrapper(kvstore: Any, param_arrays: Any, arg_params: Any, param_names: Any, update_on_kvstore: bool) -> None:
        ours = isinstance(kvstore, RackWeave)
        if ours:
            kvstore.declare([(name, arg_params[name]) for name in param_names])
        initialize(kvstore, param_arrays, arg_params, param_names, update_on_kvstore or ours)

    return wrapper


def _init_optimizer(method: Any) -> Any:
    """Wraps Module.init_optimizer so that the kvstore knows which gradients are row_sparse."""

    @functools.wraps(method)
    def wrapper(self: Any, kvstore: Any = "local", *args: Any, **kwargs: Any) -> None:
        if isinstance(kvstore, str) and "rackweave" in kvstore.lower():
            kvstore = mx.kv.create(kvstore)
        if isinstance(kvstore, RackWeave):
            grads = zip(self._exec_group.param_names, self._exec_group.grad_arrays)
            kvstore.sparse.update(name for name, of in grads if of[0] is not None and of[0].stype == "row_sparse")
        method(self, kvstore, *args, **kwargs)

    return wrapper


def _check(parameter: Any) -> None:
    """Refuses a gluon Parameter that cannot be exchanged, by its name."""
    for stype in (parameter._stype, parameter._grad_stype):
        if stype not in ("default", "row_sparse"):
            raise TensorError(f"parameter {parameter.name!r}: {stype} arrays are not supported: use dense or row_sparse ones")
    if np.dtype(parameter.dtype) not in TYPES:
        raise TensorError(f"parameter {parameter.name!r} is of {np.dtype(parameter.dtype)}: use net.cast('float32') or 'float16'")


def _init_kvstore(method: Any) -> Any:
    """Wraps Trainer._init_kvstore."""

    @functools.wraps(method)
    def wrapper(self: Any) -> None:
        kvstore = self._kvstore_params["kvstore"]
        if isinstance(kvstore, RackWeave) or (isinstance(kvstore, str) and "rackweave" in kvstore.lower()):
            for parameter in self._params:
                _check(parameter)
        method(self)
        if not isinstance(self._kvstore, RackWeave):
            return
        if self._update_on_kvstore and getattr(self, "_amp_loss_scaler", None) is not None:
            raise ConfigError("AMP looks for overflows after the update: make the Trainer with update_on_kvstore=False")
        self._kvstore.names.update((i, p.name) for i, p in enumerate(self._params))
        # The trainer would refuse another batch size. The scale travels with each step here.
        self._distributed = False

    return wrapper


def _init_params(method: Any) -> Any:
    """Wraps Trainer._init_params so that all parameters are declared at once."""

    @functools.wraps(method)
    def wrapper(self: Any) -> None:
        if isinstance(self._kvstore, RackWeave):
            ready = [p for p in self._params_to_init if not p._deferred_init]
            self._kvstore.sparse.update(self._param2idx[p.name] for p in ready if p._grad_stype != "default")
            self._kvstore.declare([(self._param2idx[p.name], p._check_and_get(p._data, list)[0]) for p in ready])
        method(self)

    return wrapper


def _reset_kvstore(method: Any) -> Any:
    """Wraps Trainer._reset_kvstore, which always refuses: the next step broadcasts what set_data wrote, as local training does."""

    @functools.wraps(method)
    def wrapper(self: Any) -> None:
        if not isinstance(self._kvstore, RackWeave):
            method(self)
            return
        if self._contains_sparse_weight:  # whose rows would be pulled as the old ones until the next step
            names = ", ".join(repr(p.name) for p in self._params if p._stype != "default")
            raise ConfigError(
                f"set_data of a Trainer with row_sparse weights, {names}, after its first forward pass or step: "
                "set all weights before, or make these dense and keep sparse_grad=True"
            )
        self._params_to_init = list(self._params)

    return wrapper


def _allreduce_grads(method: Any) -> Any:
    """Wraps Trainer._allreduce_grads so that the exchanges of row_sparse gradients, which wait for these, begin last."""

    @functools.wraps(method)
    def wrapper(self: Any) -> None:
        kvstore = self._kvstore
        if not isinstance(kvstore, RackWeave) or not self._contains_sparse_grad:
            method(self)
            return
        pushes: List[Any] = []
        pulls: List[Any] = []
        self._kvstore = types.SimpleNamespace(
            pushpull=kvstore.pushpull,
            push=lambda *args, **kwargs: pushes.append((kvstore.push, args, kwargs)),
            pull=lambda *args, **kwargs: pulls.append((kvstore.pull, args, kwargs)),
        )
        try:
            method(self)
        finally:
            self._kvstore = kvstore
        for call, args, kwargs in pushes + pulls:
            call(*args, **kwargs)

    return wrapper


def detach(owner: Any) -> None:
    """Leaves the job of a Trainer, a Module or a kvstore. All ranks call it.

    It happens by itself when nobody refers to the Trainer. The weights stay; for more steps make another Trainer.
    """
    kvstore = getattr(owner, "_kvstore", None) if not isinstance(owner, RackWeave) else owner
    if not isinstance(kvstore, RackWeave):
        raise ConfigError(
            f"this {type(owner).__name__} exchanges nothing: give a Trainer, Module or kvstore of rackweave after a step"
        )
    kvstore.close()


def install() -> None:
    """Puts Trainer and Module right."""
    for place in (_model, _trainer, _module):  # which import it by name
        place._create_kvstore = _create(place._create_kvstore)
    for place in (_model, _module):
        place._initialize_kvstore = _initialize(place._initialize_kvstore)
    _module.Module.init_optimizer = _init_optimizer(_module.Module.init_optimizer)
    trainer = _trainer.Trainer
    trainer._init_kvstore = _init_kvstore(trainer._init_kvstore)
    trainer._allreduce_grads = _allreduce_grads(trainer._allreduce_grads)
    trainer._init_params = _init_params(trainer._init_params)
    trainer._reset_kvstore = _reset_kvstore(trainer._reset_kvstore)
